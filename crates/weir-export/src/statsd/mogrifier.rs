//! Patterns that turn parts of a stat's name into `DogStatsD` tags: envoyproxy/ratelimit's mogrifiers.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::prometheus::compile;

/// The maximum size of a compiled pattern, in bytes.
const MAX_PATTERN: usize = 1 << 20;

static GROUP: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\$(\d+)").expect("it is valid"));

/// A pattern, and the name and tags of the stats whose names it finds.
#[derive(Clone, Debug)]
pub struct Mogrifier {
    pattern: Regex,
    name: MogrifiedName,
    tags: Vec<(String, MogrifiedName)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MogrifierError {
    #[error("a regular expression: {0}")]
    Pattern(String),
    #[error("a name without ':', '|' and control characters, such as ratelimit.service.rate_limit.$3")]
    Name,
    #[error("tags without ',', '|' and control characters, such as domain:$1,descriptor:$2")]
    Tags,
}

/// Text in which `$N` stands for the pattern's group N.
#[derive(Clone, Debug)]
struct MogrifiedName(String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mogrified {
    pub(super) name: String,
    pub(super) tags: Vec<(String, String)>,
}

// === impl Mogrifier ===

impl Mogrifier {
    /// Compiles a mogrifier. In `name` and in the values of `tags`, `$1` stands for the first group of `pattern`, `$0`
    /// for all that it found. A group that `pattern` does not have stays as written.
    pub fn new(pattern: &str, name: &str, tags: Vec<(String, String)>) -> Result<Self, MogrifierError> {
        let pattern = compile(pattern, MAX_PATTERN).map_err(MogrifierError::Pattern)?;
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

/// The first of `mogrifiers` that finds `name` applies.
pub(super) fn apply(mogrifiers: &[Mogrifier], name: &str) -> Mogrified {
    let unchanged = || Mogrified { name: name.to_owned(), tags: Vec::new() };
    mogrifiers.iter().find_map(|mogrifier| mogrifier.apply(name)).unwrap_or_else(unchanged)
}

// === impl MogrifiedName ===

impl MogrifiedName {
    /// A group that took no part in the match is empty.
    fn fill(&self, groups: &Captures<'_>) -> String {
        let filled = GROUP.replace_all(&self.0, |reference: &Captures<'_>| {
            let group = reference[1].parse().ok().filter(|group| *group < groups.len());
            let text = |group| groups.get(group).map_or("", |group| group.as_str()).to_owned();
            group.map_or_else(|| reference[0].to_owned(), text)
        });
        filled.into_owned()
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
        let Mogrified { name, tags } = apply(std::slice::from_ref(mogrifier), name);
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
}
