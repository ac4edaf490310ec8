//! Simulates a pool: what its members ask for in each cycle, their shares, and what is admitted, with the code that
//! decides.

use std::fmt::Write as _;

use weir_limit::{
    Period, Timestamp,
    share::{MAX_MEMBERS, Pool, PoolRule, Sharing},
};

/// The hits of all cycles and members together: each is a decision.
const MAX_HITS: u64 = 50_000_000;

/// 500 years, which leaves room to the end of timestamps.
const MAX_TIME: Period = Period::from_secs(500 * 365 * 86_400);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demands {
    /// The names of the members, each of which has an element in every cycle.
    pub members: Vec<String>,
    pub cycles: Vec<Vec<u32>>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct DemandsError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCycle {
    pub demands: Vec<u32>,
    /// Its share when the cycle began; 0 if it was no member then.
    pub shares: Vec<u32>,
    pub admitted: Vec<u32>,
}

// === impl Demands ===

impl Demands {
    /// Returns the example of `docs/fair-shares.md`: four clients of a capacity of 40.
    pub fn example() -> Self {
        let cycles = [[10, 10, 10, 10], [2, 15, 10, 10], [3, 15, 50, 10], [0, 15, 50, 5], [4, 15, 50, 9]];
        Self {
            members: ["A", "B", "C", "D"].map(str::to_owned).into(),
            cycles: cycles.into_iter().map(Vec::from).collect(),
        }
    }

    /// Reads comma-separated values: a line of the members' names, then a line of demands for each cycle.
    pub fn parse(text: &str) -> Result<Self, DemandsError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let error = |line: usize, reason: String| DemandsError { line: line + 1, reason };
        let Some((first, header)) = lines.next() else {
            return Err(error(0, "it is empty; write the names of the members, such as 'A,B,C'".into()));
        };
        let members: Vec<String> = header.split(',').map(|name| name.trim().to_owned()).collect();
        if members.len() > MAX_MEMBERS as usize {
            return Err(error(
                first,
                format!("it names {} members, and a pool has {MAX_MEMBERS} at most", members.len()),
            ));
        }
        if let Some(name) = members.iter().enumerate().find(|(i, name)| members[..*i].contains(name)) {
            return Err(error(first, format!("the member '{}' is named twice", name.1)));
        }
        let (mut cycles, mut hits) = (Vec::new(), 0_u64);
        for (at, line) in lines {
            let mut demands = Vec::with_capacity(members.len());
            for value in line.split(',').map(str::trim) {
                let demand: u32 = value
                    .parse()
                    .map_err(|_| error(at, format!("'{value}' is no whole number from 0 to {}", u32::MAX)))?;
                hits += u64::from(demand);
                demands.push(demand);
            }
            if demands.len() != members.len() {
                let (found, wanted) = (demands.len(), members.len());
                return Err(error(at, format!("it has {found} values, and there are {wanted} members")));
            }
            if hits > MAX_HITS {
                return Err(error(
                    at,
                    format!("more than {MAX_HITS} hits by here; divide all of them, and the capacity"),
                ));
            }
            cycles.push(demands);
        }
        Ok(Self { members, cycles })
    }

    /// Returns how many cycles of this length can be simulated.
    pub fn most_cycles(cycle: Period) -> u64 {
        MAX_TIME.as_nanos() / cycle.as_nanos().max(1)
    }

    /// Sends the demands to a pool of `capacity`, spread over each `cycle`, up to [`Demands::most_cycles`].
    pub fn run(&self, capacity: u32, cycle: Period, sharing: &Sharing) -> Vec<SharedCycle> {
        let rule = PoolRule { capacity, cycle, sharing };
        let mut pool = Pool::default();
        let mut ran = Vec::new();
        for (number, demands) in (1..=Self::most_cycles(cycle)).zip(&self.cycles) {
            let start = Timestamp::from_nanos(number * cycle.as_nanos());
            pool.advance(&rule, start);
            let share = |member: &String| {
                let found = pool.members().find(|(name, _)| name == member);
                found.map_or(0, |(_, state)| state.allowance)
            };
            let shares = self.members.iter().map(share).collect();
            let mut admitted = vec![0; demands.len()];
            for (at, i) in instants(demands, cycle) {
                let decision = pool.decide(&rule, &self.members[i], 1, true, start.after(at));
                admitted[i] += u32::from(decision.is_admitted);
            }
            ran.push(SharedCycle { demands: demands.clone(), shares, admitted });
        }
        ran
    }
}

/// Returns each hit's instant since the start of a cycle, in order, with its member. A member's are spread evenly.
fn instants(demands: &[u32], cycle: Period) -> Vec<(Period, usize)> {
    let mut instants: Vec<(u64, usize)> = demands
        .iter()
        .enumerate()
        .flat_map(|(i, demand)| {
            // in the middle of its part of the cycle
            let part = |hit: u32| {
                let at = u128::from(cycle.as_nanos()) * (2 * u128::from(hit) + 1) / (2 * u128::from(*demand));
                u64::try_from(at).unwrap_or(u64::MAX)
            };
            (0..*demand).map(move |hit| (part(hit), i))
        })
        .collect();
    instants.sort_unstable();
    instants.into_iter().map(|(at, i)| (Period::from_nanos(at), i)).collect()
}

/// Renders `cycles` as text: for each, what the members asked for, their shares at its start, and what was admitted.
pub fn shares_table(demands: &Demands, cycles: &[SharedCycle]) -> String {
    let names = demands.members.iter().map(|name| name.chars().count());
    let width = names.chain([7]).max().unwrap_or_default();
    let mut text = format!("{:>5}  {:<8}", "cycle", "");
    for name in &demands.members {
        let _ = write!(text, "  {name:>width$}");
    }
    let _ = writeln!(text, "  {:>width$}", "sum");
    for (i, cycle) in cycles.iter().enumerate() {
        for (what, values) in
            [("asked", &cycle.demands), ("share", &cycle.shares), ("admitted", &cycle.admitted)]
        {
            let number = if what == "asked" { (i + 1).to_string() } else { String::new() };
            let _ = write!(text, "{number:>5}  {what:<8}");
            for value in values {
                let _ = write!(text, "  {value:>width$}");
            }
            let sum: u64 = values.iter().copied().map(u64::from).sum();
            let _ = writeln!(text, "  {sum:>width$}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limit::share::{Borrow, Lend};

    #[test]
    fn the_example_comes_out_to_the_number() {
        let sharing = Sharing { lend: Lend::NextCycle, ..Sharing::default() };
        let cycles = Demands::example().run(40, Period::from_secs(10), &sharing);
        let shares: Vec<_> = cycles.iter().map(|cycle| cycle.shares.clone()).collect();
        assert_eq!(shares[1..], [[10; 4], [5, 15, 10, 10], [3, 11, 16, 10], [1, 12, 22, 5]]);
        assert_eq!(cycles[2].admitted, [3, 15, 10, 10]);
        let table = shares_table(&Demands::example(), &cycles);
        assert!(table.contains("    4  asked           0       15       50        5       70\n"), "{table}");
        assert!(table.contains("       share           3       11       16       10       40\n"), "{table}");
    }

    #[test]
    fn demands_of_ones_own_are_read() {
        let demands = Demands::parse("home, card\n\n10,20\n 0 ,5\n").expect("valid demands");
        assert_eq!(demands.members, ["home", "card"]);
        assert_eq!(demands.cycles, [[10, 20], [0, 5]]);
        let sharing = Sharing { borrow: Borrow::None, ..Sharing::default() };
        let cycles = demands.run(10, Period::from_secs(1), &sharing);
        assert_eq!(cycles[1].shares, [5, 5]);
    }

    #[test]
    fn what_is_wrong_with_demands_is_said_with_its_line() {
        for (text, expected) in [
            ("", "line 1: it is empty; write the names of the members, such as 'A,B,C'"),
            ("a,b\n1,2\n1\n", "line 3: it has 1 values, and there are 2 members"),
            ("a,b\n1,x\n", "line 2: 'x' is no whole number from 0 to 4294967295"),
            ("a,a\n", "line 1: the member 'a' is named twice"),
            (
                "a\n50000001\n",
                "line 2: more than 50000000 hits by here; divide all of them, and the capacity",
            ),
        ] {
            assert_eq!(Demands::parse(text).expect_err("invalid").to_string(), expected);
        }
    }
}
