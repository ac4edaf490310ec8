//! Parses the command line. Under the name `ratelimit`, unknown arguments do not stop the service.
//!
//! envoyproxy/ratelimit, whose program has that name, ignores every argument, and deployments that were made for it
//! pass some: Envoy AI Gateway's has `--quotaRateLimitServiceAddr=…`.

use std::{ffi::OsString, path::Path};

use clap::{
    CommandFactory as _, FromArgMatches as _, Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::Cli;

const REFERENCE: &str = "ratelimit";

const MOST_NAMES: usize = 8;

const LONGEST_NAME: usize = 64;

/// Also returns the names of ignored arguments: unknown ones, if the program serves under the name `ratelimit`.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<(Cli, Vec<String>), clap::Error> {
    let error = match Cli::try_parse_from(&arguments) {
        Ok(cli) => return Ok((cli, Vec::new())),
        Err(error) if is_reference(arguments.first()) => error,
        Err(error) => return Err(without_hidden(error)),
    };
    match without_unknown(arguments) {
        Some((cli, ignored)) if cli.serves() => Ok((cli, ignored)),
        _ => Err(error),
    }
}

fn is_reference(program: Option<&OsString>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name().is_some_and(|name| name == REFERENCE))
}

/// Removes suggestions of commands that the help does not list.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    let command = Cli::command();
    let is_listed =
        |name: &String| command.find_subcommand(name).is_none_or(|command| !command.is_hide_set());
    if let Some(ContextValue::Strings(names)) = error.remove(ContextKind::SuggestedSubcommand) {
        let listed: Vec<String> = names.into_iter().filter(is_listed).collect();
        if !listed.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(listed));
        }
    }
    error
}

/// Also returns the names of unknown arguments. None if the others are invalid.
fn without_unknown(mut arguments: Vec<OsString>) -> Option<(Cli, Vec<String>)> {
    let (mut command, mut ignored) = (Cli::command(), Vec::new());
    loop {
        let error = match command.try_get_matches_from_mut(&arguments) {
            Ok(matches) => return Some((Cli::from_arg_matches(&matches).ok()?, ignored)),
            Err(error) => error,
        };
        let unknown = match error.kind() {
            ErrorKind::UnknownArgument => error.get(ContextKind::InvalidArg),
            ErrorKind::InvalidSubcommand => error.get(ContextKind::InvalidSubcommand),
            _ => None,
        };
        let Some(ContextValue::String(unknown)) = unknown else { return None };
        let is_it = |argument: &OsString| {
            let argument = argument.to_string_lossy();
            // clap names an option without its value
            argument == *unknown || (unknown.starts_with('-') && argument.starts_with(unknown))
        };
        let place = 1 + arguments.iter().skip(1).position(is_it)?;
        ignored.push(name(&arguments.remove(place).to_string_lossy()));
    }
}

/// Leaves out the value, which may be secret.
fn name(argument: &str) -> String {
    let Some(long) = argument.strip_prefix("--") else {
        // the rest of a short option may be its value
        let is_option = argument.starts_with('-') && argument.len() > 1;
        return if is_option { argument.chars().take(2).collect() } else { "a value".to_owned() };
    };
    let is_of_name = |character: &char| character.is_ascii_alphanumeric() || "-_.".contains(*character);
    let name: String = long.chars().take_while(is_of_name).take(LONGEST_NAME).collect();
    format!("--{name}")
}

pub(crate) fn warn_of_ignored(ignored: &[String]) {
    if ignored.is_empty() {
        return;
    }
    let shown = ignored[..ignored.len().min(MOST_NAMES)].join(", ");
    let names = match ignored.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    };
    tracing::warn!(arguments = names, "unknown arguments are ignored under the name {REFERENCE}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<(Cli, Vec<String>), clap::Error> {
        parse(arguments.iter().map(OsString::from).collect())
    }

    #[test]
    fn under_the_name_of_the_reference_unknown_arguments_are_ignored() {
        let cases: [(&[&str], &[&str]); 9] = [
            (&["/bin/ratelimit"], &[]),
            (&["ratelimit", "--quotaRateLimitServiceAddr=a.b"], &["--quotaRateLimitServiceAddr"]),
            (&["./ratelimit", "--addr", "secret"], &["--addr", "a value"]),
            (&["ratelimit", "secret", "--a=1", "--b=2"], &["a value", "--a", "--b"]),
            (&["ratelimit", "-x", "-psecret", "-"], &["-x", "-p", "a value"]),
            (&["ratelimit", "--grpc-port", "0", "--other=1"], &["--other"]),
            (&["ratelimit", "serve", "--other=1", "more"], &["--other", "a value"]),
            (&["ratelimit", "--a", "--a=b", "--a"], &["--a", "--a", "--a"]),
            (&["ratelimit", "--pass:secret"], &["--pass"]),
        ];
        for (arguments, expected) in cases {
            let (cli, mut ignored) =
                parsed(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
            let mut expected = expected.to_vec();
            ignored.sort_unstable();
            expected.sort_unstable();
            assert_eq!(ignored, expected, "{arguments:?}");
            assert!(cli.serves(), "{arguments:?}");
        }
        let (cli, _) = parsed(&["ratelimit", "--other", "--grpc-port=7"]).expect("it serves");
        assert_eq!(
            cli.serve.others.0.get("GRPC_PORT").map(String::as_str),
            Some("7"),
            "known arguments are not ignored"
        );
    }

    #[test]
    fn under_any_other_name_and_in_other_commands_they_are_errors() {
        for arguments in [
            &["/bin/weir", "--other=1"][..],
            &["weir", "secret"],
            &["/ratelimit/weir", "--other=1"],
            &["ratelimit", "check", "--other=1"],
            &["ratelimit", "--config"],
            &["ratelimit", "--other=1", "--grpc-port"],
        ] {
            assert!(parsed(arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn other_commands_work_under_any_name() {
        let (cli, ignored) = parsed(&["ratelimit", "health"]).expect("a command");
        assert!(!cli.serves() && ignored.is_empty());
    }
}
