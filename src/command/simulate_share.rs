//! `weir simulate --share`: the shares of a pool's members, for the worked example or for demands of one's own.

use std::{fs, io::Write, path::PathBuf};

use clap::{Args, ValueEnum};
use weir_limit::{
    Period,
    share::{self, Sharing},
};

use super::{
    check::count,
    error::{CommandResult, failed},
    simulate::UNPRINTED,
};
use crate::simulate::{Demands, shares_table};

/// How a limit is shared.
#[derive(Args, Clone, Debug)]
pub struct SimulateShare {
    /// Simulate a pool whose members share the limit: those of this CSV file (a line of names, then one of demands for
    /// each period), or those of the worked example
    #[arg(long, value_name = "CSV", num_args = 0..=1, conflicts_with_all = ["instances", "coordination", "keys",
        "algorithm", "burst", "load", "rate", "arrivals", "skew", "round_trip", "jitter", "clock_skew",
        "sync_interval", "windows", "seed", "suggest"])]
    #[expect(clippy::option_option, reason = "absent, without a value, or with one")]
    pub share: Option<Option<PathBuf>>,
    /// How members borrow from each other; with --share
    #[arg(long, value_name = "HOW", default_value = "by_demand", requires = "share")]
    pub borrow: BorrowName,
    /// When members borrow; with --share
    #[arg(long, value_name = "WHEN", default_value = "within_cycle", requires = "share")]
    pub lend: LendName,
    /// Percentage of its default that a member without demand keeps; with --share
    #[arg(long, value_name = "PERCENT", default_value_t = 10, requires = "share",
        value_parser = clap::value_parser!(u32).range(0..=100))]
    pub reserve: u32,
}

/// The ways to borrow, by their names on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum BorrowName {
    /// In proportion to what each of them lacks.
    ByDemand,
    /// Evenly by weight, the smallest demands first.
    MaxMin,
    /// Not at all.
    None,
}

/// The times to borrow, by their names on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum LendName {
    /// In up to 20 steps of the cycle.
    WithinCycle,
    /// In the next cycle.
    NextCycle,
}

// === impl SimulateShare ===

impl SimulateShare {
    pub(super) fn demands(&self) -> CommandResult<Option<Demands>> {
        let path = match &self.share {
            None => return Ok(None),
            Some(None) => return Ok(Some(Demands::example())),
            Some(Some(path)) => path,
        };
        let text = fs::read_to_string(path).map_err(failed(format!("cannot read {}", path.display())))?;
        Ok(Some(Demands::parse(&text).map_err(failed(path.display().to_string()))?))
    }

    pub(super) fn simulate(
        &self,
        demands: &Demands,
        (capacity, cycle): (u32, Period),
        out: &mut impl Write,
    ) -> CommandResult<()> {
        let borrow = match self.borrow {
            BorrowName::ByDemand => share::Borrow::ByDemand,
            BorrowName::MaxMin => share::Borrow::MaxMin,
            BorrowName::None => share::Borrow::None,
        };
        let lend = match self.lend {
            LendName::WithinCycle => share::Lend::WithinCycle,
            LendName::NextCycle => share::Lend::NextCycle,
        };
        let (cycles, most) = (demands.cycles.len(), Demands::most_cycles(cycle));
        if cycles as u64 > most {
            return Err(format!(
                "{cycles} periods of {cycle} take too long, at most {most} can be simulated: take fewer or shorter ones"
            )
            .into());
        }
        let sharing = Sharing { borrow, lend, reserve: self.reserve, ..Sharing::default() };
        let cycles = demands.run(capacity, cycle, &sharing);
        let (borrow, lend) = (named(&self.borrow), named(&self.lend));
        let title =
            format!("{} per {cycle}, {borrow}, {lend}, reserve {}%", count(capacity, "hit"), self.reserve);
        write!(out, "{title}\n\n{}", shares_table(demands, &cycles)).map_err(failed(UNPRINTED))
    }
}

fn named(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
