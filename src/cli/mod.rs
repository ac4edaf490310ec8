//! The subcommands and their arguments.

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

/// The exit code of `weir call` for a request that is over its limit.
const OVER_LIMIT: u8 = 2;

/// Rate limit service for Envoy, compatible with envoyproxy/ratelimit.
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
    /// Serve (the default command)
    #[command(after_long_help = serve::HELP)]
    Serve(Box<Flags>),
    /// Check the rule files of a directory. Exits with 1 if there are errors
    Check(Check),
    /// Show which rule a descriptor matches, and why no other
    #[command(after_help = EXPLAIN_EXAMPLE)]
    Explain(Explain),
    /// Send one request to a server. Exits with 0 if admitted, 2 if over limit, 1 on an error
    #[command(after_help = CALL_EXAMPLES)]
    Call(Call),
    /// Simulate each coordination mode: admitted requests, overshoot and store commands
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
  weir call --domain shop --limit 10/minute user=bob        apply this limit
  weir call --address unix:/run/weir.sock --domain shop --json hello=world";

const SIMULATE_EXAMPLES: &str = "\
Examples:
  weir simulate --instances 10 --limit 1000 --period 10s --load 2
  weir simulate --instances 96 --limit 10000 --skew zipf --round-trip 500us --svg admitted.svg
  weir simulate --algorithm token_bucket --burst 50 --limit 100 --clock-skew 500ms";

/// The files of a directory that are read.
#[derive(Args, Debug)]
struct Files {
    /// Merge the descriptors of files with the same domain
    #[arg(long)]
    merge_domains: bool,
    /// Ignore files and directories whose name begins with a dot
    #[arg(long)]
    ignore_dotfiles: bool,
}

#[derive(Args, Debug)]
struct Check {
    /// Directory of rule files
    #[arg(value_name = "DIR", default_value = "config")]
    dir: PathBuf,
    #[command(flatten)]
    files: Files,
}

#[derive(Args, Debug)]
struct Explain {
    /// Directory of rule files
    #[arg(long, value_name = "DIR", default_value = "config")]
    config: PathBuf,
    /// Domain of the descriptor
    #[arg(long)]
    domain: String,
    #[command(flatten)]
    files: Files,
    /// Entries of the descriptor, in order
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = parse_entry)]
    entries: Vec<(String, String)>,
}

/// Runs the command.
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

fn code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Files {
    fn options(&self) -> config::Options {
        config::Options { merge_domains: self.merge_domains, ignore_dotfiles: self.ignore_dotfiles }
    }
}
