//! Descriptors on the command line: `key=value key=value --and key=value`.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use weir_proto::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};

/// Descriptors, each a list of keys and values. Implements `Args` by hand, since clap's derive has no lists of lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors(pub Vec<Vec<(String, String)>>);

/// Parses `key=value`. The value may contain further `=`, and may be empty.
pub fn parse_entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as key=value, such as tenant=acme".into()),
    }
}

impl Descriptors {
    pub(super) fn to_wire(&self) -> Vec<RateLimitDescriptor> {
        let entry = |(key, value): &(String, String)| Entry { key: key.clone(), value: value.clone() };
        let descriptor = |entries: &Vec<(String, String)>| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        };
        self.0.iter().map(descriptor).collect()
    }
}

impl Args for Descriptors {
    fn augment_args(command: Command) -> Command {
        let entries = |arg: Arg| arg.value_name("KEY=VALUE").value_parser(parse_entry);
        command
            .arg(
                entries(Arg::new("entries"))
                    .required(true)
                    .num_args(1..)
                    .help("Entries of the descriptor, in order"),
            )
            .arg(
                entries(Arg::new("and").long("and"))
                    .num_args(1..)
                    .action(ArgAction::Append)
                    .help("Entries of another descriptor; may be repeated"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Descriptors {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut descriptors = Self::default();
        descriptors.update_from_arg_matches(matches)?;
        Ok(descriptors)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let first: Vec<(String, String)> =
            matches.get_many("entries").into_iter().flatten().cloned().collect();
        let more = matches.get_occurrences("and").into_iter().flatten();
        self.0 = std::iter::once(first).chain(more.map(|entries| entries.cloned().collect())).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Descriptors, Error> {
        let command = Descriptors::augment_args(Command::new("test").no_binary_name(true));
        Descriptors::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    fn entry(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn and_starts_another_descriptor() {
        let descriptors = read(&["tenant=acme", "path=/a?b=c", "--and", "user=bob", "--and", "k=", "l=1"]);
        let expected = vec![
            vec![entry("tenant", "acme"), entry("path", "/a?b=c")],
            vec![entry("user", "bob")],
            vec![entry("k", ""), entry("l", "1")],
        ];
        assert_eq!(descriptors.expect("valid descriptors"), Descriptors(expected));
    }

    #[test]
    fn an_invalid_entry_is_rejected() {
        for arguments in [&["tenant"][..], &["=acme"], &[], &["a=b", "--and"]] {
            assert!(read(arguments).is_err(), "{arguments:?}");
        }
        assert!(read(&["tenant"]).unwrap_err().to_string().contains("such as tenant=acme"));
    }
}
