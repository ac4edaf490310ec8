//! Patterns that turn parts of a stat's name into `DogStatsD` tags: envoyproxy/ratelimit's mogrifiers.

use std::collections::HashMap;

use regex::{Captures, Regex, RegexBuilder};

/// The maximum size of a compiled pattern, in bytes.
const MAX_PATTERN: usize = 1 << 20;

const MAX_CACHED: usize = 10_000;

/// A pattern, and the name and tags of the stats whose names it finds.
#[derive(Clone, Debug)]
pub struct Mogrifier {
    pattern: Regex,
    name: MogrifiedName,
    tags: Vec<(String, MogrifiedName)>,
}

/// An invalid part of a mogrifier. The message describes a valid one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MogrifierError {
    /// The pattern does not compile.
    #[error("a regular expression: {0}")]
    Pattern(String),
    /// The name is empty or contains a separator.
    #[error("a name without ':', '|' and control characters, such as ratelimit.service.rate_limit.$3")]
    Name,
    /// A tag has no name or value, or contains a separator.
    #[error("tags without ',', '|' and control characters, such as domain:$1,descriptor:$2")]
    Tags,
}

/// Text in which `$N` stands for the pattern's group N.
#[derive(Clone, Debug)]
struct MogrifiedName(String);

/// All mogrifiers, with the results of the latest names: a name is sent every few seconds.
#[derive(Debug)]
pub(super) struct Mogrifiers {
    list: Vec<Mogrifier>,
    results: HashMap<String, Mogrified>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mogrified {
    pub(super) name: String,
    pub(super) tags: Vec<(String, String)>,
}

// === impl Mogrifier ===

impl Mogrifier {
    /// Compiles a mogrifier. In `name` and in the values of `tags`, `$1` stands for the first group of `pattern`, `$0`
    /// for all that it found. A group that `pattern` does not have stays as written.
    ///
    /// # Errors
    ///
    /// The first invalid part.
    pub fn new(pattern: &str, name: &str, tags: Vec<(String, String)>) -> Result<Self, MogrifierError> {
        let pattern = RegexBuilder::new(pattern).size_limit(MAX_PATTERN).build();
        let pattern = pattern.map_err(|error| MogrifierError::Pattern(last_line(&error.to_string())))?;
        let is_separator = |c: char| c == '|' || c.is_control();
        if name.is_empty() || name.contains(|c| c == ':' || is_separator(c)) {
            return Err(MogrifierError::Name);
        }
        let invalid = |text: &str| text.is_empty() || text.contains(|c| c == ',' || is_separator(c));
        if tags.iter().any(|(key, value)| invalid(key) || invalid(value)) {
            return Err(MogrifierError::Tags);
        }
        let tags = tags.into_iter().map(|(key, value)| (key, MogrifiedName(value))).collect();
        Ok(Self { pattern, name: MogrifiedName(name.into()), tags })
    }

    fn apply(&self, name: &str) -> Option<Mogrified> {
        let groups = self.pattern.captures(name)?;
        let tags = self.tags.iter().map(|(key, value)| {
            // a value of a rule may contain anything: it must not start another tag or stat
            let value = value.fill(&groups).replace(|c: char| matches!(c, ',' | '|') || c.is_control(), "_");
            (key.clone(), value)
        });
        Some(Mogrified { name: self.name.fill(&groups), tags: tags.collect() })
    }
}

/// The regex crate also draws the pattern, in several lines.
fn last_line(error: &str) -> String {
    let line = error.lines().last().unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line).trim_end_matches('.').to_owned()
}

// === impl MogrifiedName ===

impl MogrifiedName {
    /// A group that took no part in the match is empty.
    fn fill(&self, groups: &Captures<'_>) -> String {
        let mut text = String::new();
        let mut rest = self.0.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            text.push_str(before);
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, after) = after.split_at(digits);
            match number.parse::<usize>() {
                Ok(group) if group < groups.len() => {
                    text.push_str(groups.get(group).map_or("", |group| group.as_str()));
                }
                _ => {
                    text.push('$');
                    text.push_str(number);
                }
            }
            rest = after;
        }
        text.push_str(rest);
        text
    }
}

// === impl Mogrifiers ===

impl Mogrifiers {
    pub(super) fn new(list: Vec<Mogrifier>) -> Self {
        Self { list, results: HashMap::new() }
    }

    pub(super) fn apply(&mut self, name: &str) -> Mogrified {
        let unchanged = || Mogrified { name: name.to_owned(), tags: Vec::new() };
        if self.list.is_empty() {
            return unchanged();
        }
        if let Some(known) = self.results.get(name) {
            return known.clone();
        }
        let result = self.list.iter().find_map(|mogrifier| mogrifier.apply(name)).unwrap_or_else(unchanged);
        if self.results.len() >= MAX_CACHED {
            self.results.clear();
        }
        self.results.insert(name.to_owned(), result.clone());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mogrifier(pattern: &str, name: &str, tags: &[(&str, &str)]) -> Result<Mogrifier, MogrifierError> {
        let tags = tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Mogrifier::new(pattern, name, tags)
    }

    fn applied(mogrifier: &Mogrifier, name: &str) -> String {
        let Mogrified { name, tags } = Mogrifiers::new(vec![mogrifier.clone()]).apply(name);
        let tags: Vec<String> = tags.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        format!("{name} {}", tags.join(","))
    }

    #[test]
    fn groups_fill_the_name_and_the_tags() {
        for (pattern, name, value, stat, expected) in [
            // envoyproxy/ratelimit's first example
            (
                "^some\\.original\\.metric\\.(.*)$",
                "some.original.metric",
                "$1",
                "some.original.metric.TAG",
                "some.original.metric t:TAG",
            ),
            ("^a\\.(.*)$", "a", "$1", "a.b.c", "a t:b.c"),
            ("^(.*)\\.(.*)$", "$2.$1", "$0", "a.b", "b.a t:a.b"),
            // a pattern need not cover the name, which is replaced as a whole
            ("b(.)", "n$1m", "x$1$1", "abcd", "ncm t:xcc"),
            ("a(b)?(c)", "n", "<$1$2>", "ac", "n t:<c>"),
            ("a", "$1.$", "$7$x$99999999999999999999", "a", "$1.$ t:$7$x$99999999999999999999"),
            ("^(.*)$", "n", "$1", "a,b", "n t:a_b"),
            ("z", "n", "t", "a", "a "),
        ] {
            let mogrifier = mogrifier(pattern, name, &[("t", value)]).expect("it is valid");
            assert_eq!(applied(&mogrifier, stat), expected, "{pattern}");
        }
    }

    #[test]
    fn invalid_parts_are_named() {
        let invalid = |pattern, name, tags: &[_]| mogrifier(pattern, name, tags).expect_err("it is invalid");
        assert_eq!(invalid("a(", "n", &[]).to_string(), "a regular expression: unclosed group");
        assert!(matches!(invalid("(?:a{1000}){1000}", "n", &[]), MogrifierError::Pattern(_)));
        for name in ["", "a:b", "a|b", "a\nb"] {
            assert_eq!(invalid("a", name, &[]), MogrifierError::Name, "{name:?}");
        }
        for tag in [("", "v"), ("k", ""), ("k,l", "v"), ("k", "v|w")] {
            assert_eq!(invalid("a", "n", &[tag]), MogrifierError::Tags, "{tag:?}");
        }
    }

    #[test]
    fn a_flood_of_names_does_not_grow_the_cache() {
        let mut mogrifiers = Mogrifiers::new(vec![mogrifier("^a(.*)$", "a", &[("t", "$1")]).expect("valid")]);
        for i in 0..3 * MAX_CACHED {
            assert_eq!(mogrifiers.apply(&format!("a{i}")).tags[0].1, i.to_string());
            assert!(mogrifiers.results.len() <= MAX_CACHED);
        }
        assert_eq!(mogrifiers.apply("a5"), mogrifiers.apply("a5"));
    }
}
