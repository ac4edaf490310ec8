//! The subcommands and their arguments.

pub(crate) mod arguments;
mod completions;
mod man;
mod serve;

use std::{
    error::Error,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use weir::{
    command::{
        self, CheckFormat, CheckOptions, DescriptorToSimulate, Descriptors, Explained, ExplainedRequest,
        ReplayedRules,
        call::{Call, CallOutcome},
        data::DataCommand,
        health::HealthCheck,
        hot::Hot,
        record::RecordArguments,
        replay::Replay,
        reset::Reset,
        simulate::Simulate,
        token::Token,
        top::Top,
        why::Why,
    },
    settings::{self, Flags, ProcessEnvironment, SettingErrors},
};
use weir_config::{ConfigErrors, Loaded};
use weir_export::log::LogFormat;
use weir_limit::SharedCounts;
use weir_replay::ReplaySettings;
use weir_store::clock::{Clock as _, SystemClock};

use self::{completions::Completions, man::Man};

/// The exit code of `weir call` and `weir why` for a request that is over its limit.
const OVER_LIMIT: u8 = 2;

/// The exit code of `weir call --require-limit` for a request that no limit applies to.
const NO_LIMIT: u8 = 4;

/// The exit code of `weir explain` if no rule matches.
const NO_MATCH: u8 = 3;

/// The exit code of `weir replay` if more requests are rejected than `--max-increase` allows.
const ABOVE_INCREASE: u8 = 2;

/// Rate limit service for Envoy, compatible with envoyproxy/ratelimit.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_long_help = serve::help())]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve (the default command)
    #[command(after_long_help = serve::help())]
    Serve(Box<Flags>),
    /// Check rule files. Exits with 1 if there are errors
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Check),
    /// Show which rules descriptors match, and why others do not match. Exits with 3 if one matches none
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(Explain),
    /// Send one request to a server. Exits with 0 if admitted, 2 if over limit, 1 on an error; 4 with --require-limit
    /// if nothing limits it
    #[command(after_help = CALL_EXAMPLES)]
    Call(Call),
    /// Show the counters with the most hits and rejections of a running weir
    Hot(Hot),
    /// Show what a running weir does, redrawn each second; q quits
    Top(Box<Top>),
    /// Ask a running weir what a request would get now, and why, without counting it. Exits with 0 if it would be
    /// admitted, 2 if not
    #[command(after_help = WHY_EXAMPLES)]
    Why(Box<Why>),
    /// Ask a running weir on this host for its health. Exits with 0 if it is healthy, 1 if not
    Health(HealthCheck),
    /// Look at counters on disk, export and import them, or remove what has expired
    #[command(after_help = DATA_EXAMPLES)]
    Data(DataCommand),
    /// Simulate each coordination mode: admitted requests, overshoot and store commands
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(Box<SimulateRule>),
    /// Record what running instances are asked and decide, for weir replay. Exits with 1 if one does not answer
    #[command(after_help = RECORD_EXAMPLES)]
    Record(RecordArguments),
    /// Decide recorded requests by other rules, and show what differs. Exits with 2 above --max-increase, 1 on an error
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(Box<ReplayRules>),
    /// Forget the hits of a descriptor, at all instances of a running weir and in their store
    #[command(after_help = RESET_EXAMPLES)]
    Reset(Reset),
    /// Sign a token with which a tenant looks at its own limits, and nothing else
    #[command(after_help = TOKEN_EXAMPLES)]
    Token(Token),
    /// Print a script that completes weir's commands and options in a shell
    #[command(after_help = completions::EXAMPLES)]
    Completions(Completions),
    /// Write a man page for each command into a directory
    #[command(hide = true)]
    Man(Man),
}

const CHECK_EXAMPLES: &str = "\
Examples:
  weir check ./config
  weir check --deny-warnings --format json shop.yaml
  kubectl get configmap rules -o jsonpath='{.data.shop\\.yaml}' | weir check -";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  weir explain --config ./config --domain shop tenant=acme path=/v1/orders method=GET
  weir explain --config mesh.yaml --domain mesh tenant=acme --and tenant=acme path=/checkout    what a rejection of each does
  REDIS_URL=redis weir explain --domain shop --instances 3 hello=world    the coordination mode among three instances";

const CALL_EXAMPLES: &str = "\
Examples:
  weir call --domain shop hello=world
  weir call --domain shop tenant=acme path=/v1/orders --and hello=world
  weir call --domain shop --hits 0 hello=world              check without counting
  weir call --domain llm --name NAME --hits 1400            end the request NAME, which has cost 1400
  weir call --domain shop --limit 10/minute user=bob        apply this limit
  weir call --address unix:/run/weir.sock --domain shop --json hello=world";

const WHY_EXAMPLES: &str = "\
Examples:
  weir why --domain shop tenant=acme path=/v1/orders
  weir why --line 'rejected domain=shop rule=shop.tenant descriptor=tenant=acme hits=1 …'
  kubectl logs deploy/weir | grep rejected | tail -1 | weir why --line -";

const DATA_EXAMPLES: &str = "\
Examples:
  weir data inspect --dir /var/lib/weir --prefix 'shop|tenant=acme'
  weir data export --dir /var/lib/weir > backup.jsonl              also while weir runs
  weir data import --dir /var/lib/weir < backup.jsonl
  weir data compact --dir /var/lib/weir";

const RESET_EXAMPLES: &str = "\
Examples:
  weir reset --domain shop tenant=acme                             WEIR_ADMIN=full, or --token-file with a full token
  weir reset --domain llm --older-than 10m tenant=acme             end requests in flight whose ends were lost";

const TOKEN_EXAMPLES: &str = "\
Examples:
  openssl rand -hex 32 > keys && chmod 600 keys
  weir token --key-file keys --domain shop --for 90d tenant=acme
  curl -H \"Authorization: Bearer $TOKEN\" http://localhost:8080/v1/headroom";

const SIMULATE_EXAMPLES: &str = "\
Examples:
  weir simulate --instances 10 --limit 20 --period 10s --load 2
  weir simulate --keys 1 --instances 96 --limit 10000 --skew zipf --round-trip 500us
  weir simulate --algorithm token_bucket --burst 50 --limit 100 --clock-skew 500ms
  weir simulate --config ./config --domain shop --suggest tenant=acme      the limit of this descriptor's rule";

const RECORD_EXAMPLES: &str = "\
Examples:
  weir record --minutes 5 > traffic                  this host; the key of the hashed values is in recording.key
  weir record --address dns:weir-debug:6070 --output traffic      all instances of a name; the key is in traffic.key
  weir record --minutes 0 --values > traffic         what was recorded already, with values";

const REPLAY_EXAMPLES: &str = "\
Examples:
  weir replay traffic --config new/                         what was recorded, beside what the rules in new/ decide
  weir replay traffic --config new/ --old config/ --max-increase 1%
  weir replay one two three --config new/ --html change.html        the recordings of three instances
  weir replay access.log --config new/ --domain shop --time .start_time --map tenant=.x_tenant --map path=.path";

/// Selects the files of a directory that are read.
#[derive(Args, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
struct Files {
    /// Merge the descriptors of files with the same domain [env: MERGE_DOMAIN_CONFIG]
    #[arg(long)]
    merge_domains: bool,
    /// Ignore files and directories whose name begins with a dot [env: RUNTIME_IGNOREDOTFILES]
    #[arg(long)]
    ignore_dotfiles: bool,
    /// Directory of tables besides that of the rules [env: WEIR_TABLES_DIR]
    #[arg(long, value_name = "DIR")]
    tables: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
struct Check {
    /// Directory of rule files, one file, or - for standard input [env: RUNTIME_ROOT and others, as for weir serve]
    /// [default: ./config]
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Format of the result
    #[arg(long, value_enum, default_value_t)]
    format: CheckFormat,
    /// Treat warnings as errors
    #[arg(long)]
    deny_warnings: bool,
    #[command(flatten)]
    files: Files,
}

#[derive(Args, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
struct Explain {
    /// Directory of rule files, one file, or - for standard input [env: RUNTIME_ROOT and others, as for weir serve]
    /// [default: ./config]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Domain of the descriptors
    #[arg(long)]
    domain: String,
    /// Number of instances that share a store [default: unknown]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    instances: Option<u32>,
    /// Explains the rules of that time, such as 2027-03-28T02:30, without an offset in the rule's zone [default: now]
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    files: Files,
    /// The descriptors of the request.
    #[command(flatten)]
    descriptors: Descriptors,
}

#[derive(Args, Debug)]
struct SimulateRule {
    #[command(flatten)]
    simulate: Simulate,
    /// Simulate the rule of this descriptor, in place of --limit, --period, --algorithm and --burst
    #[arg(value_name = "KEY=VALUE", value_parser = command::parse_entry, requires = "domain",
        conflicts_with_all = ["limit", "period", "algorithm", "burst", "share"])]
    entries: Vec<(String, String)>,
    /// Directory of rule files, one file, or - for standard input; with KEY=VALUE [default: as for weir explain]
    #[arg(long, value_name = "PATH", requires = "entries")]
    config: Option<PathBuf>,
    /// Domain of the descriptor; with KEY=VALUE
    #[arg(long, requires = "entries")]
    domain: Option<String>,
    #[command(flatten)]
    files: Files,
}

#[derive(Args, Debug)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
struct ReplayRules {
    #[command(flatten)]
    replay: Replay,
    /// Directory of rule files, one file, or - for standard input [env: RUNTIME_ROOT and others, as for weir serve]
    /// [default: ./config]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Decide by these rules, too, instead of showing what was recorded
    #[arg(long, value_name = "PATH")]
    old: Option<PathBuf>,
    #[command(flatten)]
    files: Files,
}

impl Cli {
    const fn serves(&self) -> bool {
        matches!(self.command, None | Some(Command::Serve(_)))
    }

    /// The format of everything on standard error: `LOG_FORMAT` for the service, text for the tools.
    pub(crate) fn log_format(&self) -> LogFormat {
        match &self.command {
            None => settings::log_format(&self.serve, &ProcessEnvironment),
            Some(Command::Serve(flags)) => settings::log_format(flags, &ProcessEnvironment),
            Some(_) => LogFormat::Text,
        }
    }
}

pub(crate) fn run(cli: Cli, ignored: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let (environment, out) = (&ProcessEnvironment, &mut io::stdout());
    let is_right = match cli.command {
        None => return serve::run(&cli.serve, ignored),
        Some(Command::Serve(flags)) => return serve::run(&flags, ignored),
        Some(Command::Check(check)) => check.run(out)?,
        Some(Command::Explain(explain)) => match explain.run(out)? {
            Explained::Match => true,
            Explained::NoMatch => return Ok(ExitCode::from(NO_MATCH)),
            Explained::InvalidRules => false,
        },
        Some(Command::Simulate(simulate)) => simulate.run(out).map(|()| true)?,
        Some(Command::Record(record)) => command::record(&record, environment, out)?,
        Some(Command::Replay(replay)) if replay.run(out)? => true,
        Some(Command::Replay(_)) => return Ok(ExitCode::from(ABOVE_INCREASE)),
        Some(Command::Reset(reset)) => command::reset(&reset, environment, out).map(|()| true)?,
        Some(Command::Token(token)) => command::token(&token, environment, out).map(|()| true)?,
        Some(Command::Completions(completions)) => {
            completions.print(&mut Cli::command(), out).map(|()| true)?
        }
        Some(Command::Man(man)) => man.write(Cli::command()).map(|()| true)?,
        Some(Command::Data(data)) => {
            command::data(&data, environment, io::stdin().lock(), out).map(|()| true)?
        }
        Some(Command::Hot(hot)) => command::hot(&hot, environment, out)?,
        Some(Command::Top(top)) => command::top(&top, environment, out).map(|()| true)?,
        Some(Command::Why(why)) => {
            if !command::why(&why, environment, io::stdin().lock(), out)? {
                return Ok(ExitCode::from(OVER_LIMIT));
            }
            true
        }
        Some(Command::Health(check)) => command::health(&check, environment, out)?,
        Some(Command::Call(call)) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            match runtime.block_on(command::call(&call, out))? {
                CallOutcome::Admitted => true,
                CallOutcome::OverLimit => return Ok(ExitCode::from(OVER_LIMIT)),
                CallOutcome::NoLimit => return Ok(ExitCode::from(NO_LIMIT)),
            }
        }
    };
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

// === impl Check ===

impl Check {
    fn run(&self, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
        let (shared, _) = settings::shared_counts(&ProcessEnvironment)?;
        let (source, loaded) = self.files.load(self.path.as_deref())?;
        let loaded = loaded.and_then(|loaded| match shared.store {
            Some(store) => weir_config::check_shared(loaded, store, shared.mode),
            None => Ok(loaded),
        });
        let options = CheckOptions { deny_warnings: self.deny_warnings, format: self.format };
        Ok(command::check(source, loaded, options, out)?)
    }
}

// === impl Explain ===

impl Explain {
    fn run(&self, out: &mut impl Write) -> Result<Explained, Box<dyn Error>> {
        let (_, loaded) = self.files.load(self.config.as_deref())?;
        let (shared, scope) = settings::shared_counts(&ProcessEnvironment)?;
        let instances = self.instances.map(|instances| instances as usize);
        let request = ExplainedRequest {
            domain: &self.domain,
            descriptors: &self.descriptors.0,
            scope,
            shared: SharedCounts { instances, ..shared },
            at: self.at.as_deref(),
            now: SystemClock.now(),
        };
        command::explain(loaded, &request, out)
    }
}

// === impl SimulateRule ===

impl SimulateRule {
    fn run(&self, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
        let descriptor = match &self.domain {
            Some(domain) => {
                let (_, loaded) = self.files.load(self.config.as_deref())?;
                Some(DescriptorToSimulate { loaded, domain, entries: &self.entries })
            }
            None => None,
        };
        command::simulate(&self.simulate, descriptor, out)
    }
}

// === impl ReplayRules ===

impl ReplayRules {
    fn run(&self, out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
        let load = |path| self.files.load(path).map(|(_, loaded)| loaded);
        let decisions = settings::decisions(&ProcessEnvironment)?;
        let rules = ReplayedRules {
            new: load(self.config.as_deref())?,
            old: self.old.as_deref().map(|old| load(Some(old))).transpose()?,
            settings: ReplaySettings { modes: decisions.modes, scope: decisions.scope },
        };
        command::replay(&self.replay, rules, out)
    }
}

// === impl Files ===

impl Files {
    /// Loads what the service would serve if `path` is none; `-` is standard input. Also returns the source's name.
    fn load(&self, path: Option<&Path>) -> Result<(String, Result<Loaded, ConfigErrors>), SettingErrors> {
        let (stdin, options) = ("<stdin>", self.options()?);
        let path = match path {
            Some(path) => path.to_owned(),
            None => settings::rules_dir(&ProcessEnvironment)?,
        };
        Ok(match &*path {
            path if path.as_os_str() == "-" => {
                (stdin.to_owned(), weir_config::load_input(stdin, io::stdin().lock(), &options))
            }
            path if path.exists() && !path.is_dir() => {
                (path.display().to_string(), weir_config::load_file(path, &options))
            }
            path => (path.display().to_string(), weir_config::load(path, &options)),
        })
    }

    fn options(&self) -> Result<weir_config::Options, SettingErrors> {
        let variables = settings::file_options(&ProcessEnvironment)?;
        Ok(weir_config::Options {
            merge_domains: self.merge_domains || variables.merge_domains,
            ignore_dotfiles: self.ignore_dotfiles || variables.ignore_dotfiles,
            tables: weir_config::TableOptions {
                dir: self.tables.clone().or(variables.tables.dir),
                ..variables.tables
            },
        })
    }
}
