use std::{fmt, sync::Arc};

use super::{
    network::{IpNetwork, NetworkList},
    table::TableValues,
};

/// The values that a node of the rule tree matches, for entries with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Every value, including the empty one.
    Any,
    One(Pattern),
    /// Any of several values or patterns, which share their counter. Never empty.
    Of(Vec<Pattern>),
    /// Those of a table.
    Table(TableValues),
    /// The addresses of networks, and the networks within. Never empty. They share their counter, unless the node says
    /// otherwise.
    Networks(Arc<NetworkList>),
}

/// A value as written in a rule: literal, or with `*` for zero or more characters, anywhere and several times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Box<str>,
    /// The literal texts between the stars. A pattern with one part has no star.
    parts: Box<[Box<str>]>,
}

// === impl Values ===

impl Values {
    /// Returns the values and patterns that are compared as text.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        match self {
            Self::Any | Self::Networks(_) | Self::Table(_) => [].iter(),
            Self::One(pattern) => std::slice::from_ref(pattern).iter(),
            Self::Of(patterns) => patterns.iter(),
        }
    }

    pub fn is_wildcard(&self) -> bool {
        self.patterns().any(Pattern::is_wildcard)
    }

    pub fn networks(&self) -> Option<&Arc<NetworkList>> {
        match self {
            Self::Networks(list) => Some(list),
            Self::Any | Self::One(_) | Self::Of(_) | Self::Table(_) => None,
        }
    }

    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Table(table) => table.matches(value),
            Self::Networks(list) => {
                let holds = |value| list.networks().iter().any(|listed| listed.network.contains(&value));
                IpNetwork::of_value(value).is_some_and(holds)
            }
            Self::One(_) | Self::Of(_) => self.patterns().any(|pattern| pattern.matches(value)),
        }
    }
}

/// Formats the values as in counter keys and stat names: joined with `|`, or the name of the table or list.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Table(table) = self {
            return table.fmt(f);
        }
        if let Self::Networks(list) = self {
            return f.write_str(list.name());
        }
        for (i, pattern) in self.patterns().enumerate() {
            if i > 0 {
                f.write_str("|")?;
            }
            f.write_str(pattern.text())?;
        }
        Ok(())
    }
}

// === impl Pattern ===

impl Pattern {
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), parts: text.split('*').map(Into::into).collect() }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_wildcard(&self) -> bool {
        self.parts.len() > 1
    }

    /// Returns whether `value` matches, in time linear in its length: the leftmost match of each part works.
    pub fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &*self.parts else {
            return *self.text == *value;
        };
        let Some(mut rest) = value
            .strip_prefix(&**first)
            // the first and last parts must not overlap: `ab*bc` does not match `abc`
            .and_then(|rest| rest.strip_suffix(&**last))
        else {
            return false;
        };
        for part in middle {
            let Some(at) = rest.find(&**part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, value: &str) -> bool {
        Pattern::new(pattern).matches(value)
    }

    #[test]
    fn a_star_matches_zero_or_more_characters_anywhere() {
        for (pattern, value) in [
            ("*", ""),
            ("*", "anything"),
            ("/api/*", "/api/"),
            ("/api/*", "/api/v1/x"),
            ("*.pdf", "a.pdf"),
            ("/api/*/x/*/y", "/api/1/x/2/y"),
            ("/api/*/x/*/y", "/api//x//y"),
            ("a**b", "ab"),
            ("a*b*a", "aba"),
        ] {
            assert!(matches(pattern, value), "{pattern} should match {value}");
        }
    }

    #[test]
    fn literal_parts_must_occur_in_order_without_overlap() {
        for (pattern, value) in [
            ("/api/*", "/ap"),
            ("ab*bc", "abc"),
            ("/api/*/x/*/y", "/api/1/y/2/x"),
            ("a*b*a", "aa"),
            ("*.pdf", "a.pdf.gz"),
            ("a*a", "a"),
        ] {
            assert!(!matches(pattern, value), "{pattern} should not match {value}");
        }
    }

    #[test]
    fn a_pattern_without_a_star_is_literal() {
        assert!(matches("GET", "GET"));
        assert!(!matches("GET", "get"));
        assert!(!Pattern::new("GET").is_wildcard());
    }

    #[test]
    fn several_values_are_joined_with_a_bar() {
        let values = Values::Of(vec![Pattern::new("GET"), Pattern::new("HEAD")]);
        assert_eq!(values.to_string(), "GET|HEAD");
        assert!(values.matches("HEAD") && !values.matches("PUT"));
        assert_eq!(Values::Any.to_string(), "");
    }
}
