//! The flags of `weir serve`, as text. Each takes precedence over the variable of the same setting.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::table::{self, Setting};

/// The flags as given on the command line.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::doc_markdown, reason = "clap prints these comments verbatim")]
pub struct Flags {
    /// Directory of rule files, or one file, watched for changes [env: RUNTIME_ROOT and others] [default: ./config]
    #[arg(long, value_name = "PATH")]
    pub config: Option<String>,
    /// The other flags.
    #[command(flatten)]
    pub others: FlagValues,
}

/// The values of flags, by the variables of the same settings.
#[derive(Clone, Debug, Default)]
pub struct FlagValues(pub BTreeMap<&'static str, String>);

// === impl FlagValues ===

impl Args for FlagValues {
    fn augment_args(command: Command) -> Command {
        command.args(table::all().filter_map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FlagValues {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |setting: &Setting| {
            let (flag, _) = setting.flag?;
            Some((setting.names, matches.get_one::<String>(flag)?.clone()))
        };
        Ok(Self(table::all().filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|values| *self = values)
    }
}

fn argument(setting: &Setting) -> Option<Arg> {
    let (flag, value) = setting.flag?;
    let meaning = setting.plain_meaning();
    let (first, rest) = meaning.split_at(1);
    let default = match setting.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let help = format!("{}{rest} [env: {}]{default}", first.to_uppercase(), setting.names);
    Some(Arg::new(flag).long(flag).value_name(value).help(help))
}
