//! The regular expressions of mappings.

use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use weir_observe::mapper::Expression;

/// The maximum size of a compiled regular expression, in bytes.
const MAX_REGEX: usize = 1 << 18;

/// Compiles a regular expression in RE2's syntax.
pub fn expression(text: &str) -> Result<Arc<dyn Expression>, String> {
    compile(text, MAX_REGEX).map(|regex| Arc::new(Compiled(regex)) as _)
}

/// Compiles to at most `max` bytes, or returns why it cannot be compiled.
pub(crate) fn compile(text: &str, max: usize) -> Result<Regex, String> {
    RegexBuilder::new(text).size_limit(max).build().map_err(|error| {
        // the crate also draws the pattern, in several lines
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default().trim();
        reason.strip_prefix("error: ").unwrap_or(reason).trim_end_matches('.').to_owned()
    })
}

#[derive(Debug)]
struct Compiled(Regex);

impl Expression for Compiled {
    fn captures<'a>(&self, stat: &'a str) -> Option<Vec<&'a str>> {
        let groups = self.0.captures(stat)?;
        Some(groups.iter().map(|group| group.map_or("", |group| group.as_str())).collect())
    }

    fn groups(&self) -> Vec<Option<&str>> {
        self.0.capture_names().collect()
    }
}

#[cfg(test)]
mod tests {
    use weir_observe::{
        mapper::{Mapper, Mapping, Matcher, Observer, SeriesTemplate, StatKind},
        template::Template,
    };

    use super::*;

    fn add(mapper: &mut Mapper, matcher: Matcher, kind: Option<StatKind>, name: &str, label: &str) {
        let parse = |text: &str| Template::parse(text, |name| matcher.group(name)).0;
        let labels = if label.is_empty() { Vec::new() } else { vec![("l".to_owned(), parse(label))] };
        let series = SeriesTemplate {
            name: parse(name),
            labels,
            help: None,
            scale: 1.0,
            observer: Observer::Histogram(None),
        };
        let series = (name != "drop").then_some(series);
        mapper.push(matcher, Mapping { kind, series });
    }

    fn glob(text: &str) -> Matcher {
        Matcher::glob(text).expect("a glob")
    }

    fn regex(text: &str) -> Matcher {
        Matcher::Regex(expression(text).expect("a regular expression"))
    }

    /// Returns `name{label}` of a counter, or nothing if it is dropped.
    fn mapped(mapper: &Mapper, stat: &str) -> String {
        let series = mapper.series(stat, StatKind::Counter);
        series.map_or(String::new(), |series| {
            let labels: Vec<&str> = series.labels.iter().map(|(_, value)| value.as_str()).collect();
            format!("{}{{{}}}", series.name, labels.join(","))
        })
    }

    #[test]
    fn globs_come_before_regular_expressions_and_the_first_of_each_applies() {
        let mut mapper = Mapper::new(false);
        add(&mut mapper, regex("^a\\."), None, "regex", "$0");
        add(&mut mapper, glob("a.*.*"), None, "glob", "$2-$1");
        add(&mut mapper, glob("a.b.*"), None, "never", "");
        add(&mut mapper, glob("*.x"), Some(StatKind::Observer), "never", "");
        add(&mut mapper, regex("(?P<first>[^.]+)\\.dropped"), None, "drop", "");
        add(&mut mapper, regex("^(?P<first>[^.]+)\\.(y)?z"), None, "${first}_total", "$2|${first}");
        for (stat, expected) in [
            ("a.b.c", "glob{c-b}"),
            ("a..", "glob{-}"),
            ("a.b", "regex{a.}"),
            ("b.dropped", ""),
            ("b.z.more", "b_total{|b}"),
            ("b.yz", "b_total{y|b}"),
            ("n.x", "n_x{}"),
            ("1a.b--c:ü", "_1a_b_c__{}"),
        ] {
            assert_eq!(mapped(&mapper, stat), expected, "{stat}");
        }
    }

    #[test]
    fn the_most_specific_glob_applies_without_ordering() {
        let mut mapper = Mapper::new(true);
        for (text, name) in [("a.*.*", "any"), ("a.*.d", "last"), ("a.b.*", "middle"), ("a.b.d", "all")] {
            add(&mut mapper, glob(text), None, name, "");
        }
        for (stat, expected) in [("a.x.y", "any"), ("a.x.d", "last"), ("a.b.y", "middle"), ("a.b.d", "all")] {
            assert_eq!(mapped(&mapper, stat), format!("{expected}{{}}"), "{stat}");
        }
    }

    #[test]
    fn invalid_matches_are_rejected() {
        for text in ["", "a..b", "a.b*", "1a.b", "a/b", "a.-b", "."] {
            assert!(Matcher::glob(text).is_none(), "{text}");
        }
        for text in ["*", "*.*", "a.1.b-c", "_a"] {
            assert!(Matcher::glob(text).is_some(), "{text}");
        }
        assert_eq!(expression("a(").expect_err("it is invalid"), "unclosed group");
        assert!(expression("(?:a{1000}){1000}").is_err());
    }
}
