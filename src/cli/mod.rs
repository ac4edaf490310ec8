//! How the subcommands are typed, and where each goes.

mod serve;

use std::{error::Error, io, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use weir::{
    command::{
        self,
        call::{Call, Outcome},
        parse_entry,
        simulate::Simulate,
    },
    config,
    settings::Flags,
};

/// What `weir call` says of a request that is over its limit.
const OVER_LIMIT: u8 = 2;

/// A rate limit service for Envoy, and a drop-in for envoyproxy/ratelimit.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_long_help = serve::HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (what weir does without a command)
    #[command(after_long_help = serve::HELP)]
    Serve(Box<Flags>),
    /// Check the rules of a directory; exit code 1 if there are errors
    Check(Check),
    /// Explain which rule a descriptor matches, and why no other
    #[command(after_help = EXPLAIN_EXAMPLE)]
    Explain(Explain),
    /// Send one request to a server; exit code 0 if it passes, 2 if it is over its limit, 1 on an error
    #[command(after_help = CALL_EXAMPLES)]
    Call(Call),
    /// Tell what each way of coordination makes of a limit, by a simulation of the real one
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(Simulate),
}

const EXPLAIN_EXAMPLE: &str = "\
Example:
  weir explain --config ./config --domain shop tenant=acme path=/v1/orders method=GET";

const CALL_EXAMPLES: &str = "\
Examples:
  weir call --domain shop hello=world
  weir call --domain shop tenant=acme path=/v1/orders --and hello=world
  weir call --domain shop --hits 0 hello=world              check without counting
  weir call --domain shop --limit 10/minute user=bob        a limit that is not configured
  weir call --address unix:/run/weir.sock --domain shop --json hello=world";

const SIMULATE_EXAMPLES: &str = "\
Examples:
  weir simulate --instances 10 --limit 1000 --period 10s --load 2
  weir simulate --instances 96 --limit 10000 --skew zipf --round-trip 500us --svg admitted.svg
  weir simulate --algorithm token_bucket --burst 50 --limit 100 --clock-skew 500ms";

/// Which files are read.
#[derive(Args, Debug)]
struct Files {
    /// Several files may add to one domain
    #[arg(long)]
    merge_domains: bool,
    /// Leave out files and directories whose name begins with a dot
    #[arg(long)]
    ignore_dotfiles: bool,
}

#[derive(Args, Debug)]
struct Check {
    /// The directory of the rules
    #[arg(value_name = "DIR", default_value = "config")]
    dir: PathBuf,
    #[command(flatten)]
    files: Files,
}

#[derive(Args, Debug)]
struct Explain {
    /// The directory of the rules
    #[arg(long, value_name = "DIR", default_value = "config")]
    config: PathBuf,
    /// The domain that is asked about
    #[arg(long)]
    domain: String,
    #[command(flatten)]
    files: Files,
    /// The entries of the descriptor, from the least to the most specific
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = parse_entry)]
    entries: Vec<(String, String)>,
}

/// Does what was asked for.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Box<dyn Error>> {
    match cli.command {
        None => serve::run(&cli.serve),
        Some(Command::Serve(flags)) => serve::run(&flags),
        Some(Command::Check(check)) => {
            let all_right = {
                let loaded = config::load(&check.dir, &check.files.options());
                command::check(check.dir.display(), loaded, &mut io::stdout().lock())?
            };
            Ok(code(all_right))
        }
        Some(Command::Explain(explain)) => {
            let Explain { config, domain, files, entries } = explain;
            let mut out = io::stdout().lock();
            let loaded = config::load(&config, &files.options());
            Ok(code(command::explain(loaded, &domain, &entries, &mut out)?))
        }
        Some(Command::Simulate(simulate)) => {
            command::simulate(&simulate, &mut io::stdout().lock())?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Call(call)) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            match runtime.block_on(command::call(&call, &mut io::stdout().lock()))? {
                Outcome::Passes => Ok(ExitCode::SUCCESS),
                Outcome::OverLimit => Ok(ExitCode::from(OVER_LIMIT)),
            }
        }
    }
}

fn code(all_right: bool) -> ExitCode {
    if all_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Files {
    fn options(&self) -> config::Options {
        config::Options { merge_domains: self.merge_domains, ignore_dotfiles: self.ignore_dotfiles }
    }
}
