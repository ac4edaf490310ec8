//! The query of a request: names, values, and which part of a list is wanted.

use axum::http::Uri;
use serde_json::{Value, json};
use weir_limit::Entry;

use super::problem::Problem;

/// The names that every list takes.
const OF_LISTS: [&str; 2] = ["limit", "cursor"];

const DEFAULT_LIMIT: usize = 100;

pub(super) const MAX_LIMIT: usize = 1_000;

/// The longest query that is read, in pairs.
const MAX_PAIRS: usize = 1_000;

#[derive(Debug)]
pub(in crate::http) struct Query(Vec<(String, String)>);

/// A part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct ListPart {
    pub(super) from: usize,
    pub(super) limit: usize,
}

// === impl Query ===

impl Query {
    /// Takes the names of lists and those that are `known`, each once; `entry` may be there several times.
    pub(in crate::http) fn parse(uri: &Uri, known: &[&str]) -> Result<Self, Problem> {
        let text = uri.query().unwrap_or_default();
        let pairs: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes())
            .take(MAX_PAIRS + 1)
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        if pairs.len() > MAX_PAIRS {
            return Err(Problem::malformed(format!("The query has more than {MAX_PAIRS} parameters.")));
        }
        let all = || known.iter().chain(&OF_LISTS);
        for (i, (name, _)) in pairs.iter().enumerate() {
            if !all().any(|known| known == name) {
                let names = all().copied().collect::<Vec<_>>().join(", ");
                return Err(Problem::malformed(format!(
                    "There is no parameter '{name}'; there are {names}."
                )));
            }
            if name != "entry" && pairs[..i].iter().any(|(other, _)| other == name) {
                return Err(Problem::malformed(format!("The parameter '{name}' is there twice.")));
            }
        }
        Ok(Self(pairs))
    }

    pub(in crate::http) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// One of `choices`, the first by default.
    pub(super) fn choice<'c>(&self, name: &str, choices: &[&'c str]) -> Result<&'c str, Problem> {
        let Some(given) = self.get(name) else { return Ok(choices.first().copied().unwrap_or_default()) };
        choices.iter().find(|choice| **choice == given).copied().ok_or_else(|| {
            Problem::malformed(format!("{name} is '{given}', but must be {}.", choices.join(" or ")))
        })
    }

    /// The values of `entry`.
    pub(in crate::http) fn entries(&self) -> Result<Vec<Entry<'_>>, Problem> {
        let entry = |(_, text): &'_ (String, String)| -> Result<(usize, usize), Problem> {
            match text.split_once('=') {
                Some((key, _)) if !key.is_empty() => Ok((key.len(), key.len() + 1)),
                _ => Err(Problem::malformed(format!("entry is '{text}'; write it as key=value."))),
            }
        };
        let given = self.0.iter().filter(|(name, _)| name == "entry");
        given
            .map(|pair| {
                let (end, begin) = entry(pair)?;
                Ok(Entry { key: &pair.1[..end], value: &pair.1[begin..] })
            })
            .collect()
    }

    pub(in crate::http) fn part(&self) -> Result<ListPart, Problem> {
        let limit = match self.get("limit") {
            None => DEFAULT_LIMIT,
            Some(text) => {
                text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit)).ok_or_else(|| {
                    Problem::malformed(format!(
                        "limit is '{text}', but must be a number from 1 to {MAX_LIMIT}."
                    ))
                })?
            }
        };
        let from = match self.get("cursor") {
            None => 0,
            Some(text) => text
                .parse()
                .map_err(|_| Problem::malformed("cursor is not the `next` of an answer before."))?,
        };
        Ok(ListPart { from, limit })
    }
}

// === impl ListPart ===

impl ListPart {
    /// As much as a list may have.
    pub(super) const ALL: Self = Self { from: 0, limit: MAX_LIMIT };

    /// Cuts this part out of `items`. Returns it with the cursor of the rest.
    pub(in crate::http) fn of<T>(self, items: impl Iterator<Item = T>) -> (Vec<T>, Value) {
        let mut items = items.skip(self.from);
        let part: Vec<T> = items.by_ref().take(self.limit).collect();
        let next = items.next().map(|_| self.from.saturating_add(self.limit).to_string());
        (part, json!(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Query, Problem> {
        Query::parse(&format!("/v1/x?{query}").parse().expect("a path"), &["domain", "entry"])
    }

    #[test]
    fn entries_are_in_their_order_and_values_may_have_anything() {
        let query = parse("domain=a%26b&entry=k%3Dv%3D%C3%A4&entry=k=&entry=x=+").expect("right");
        let entries = query.entries().expect("entries");
        let entries: Vec<_> = entries.iter().map(|entry| (entry.key, entry.value)).collect();
        assert_eq!((query.get("domain"), entries), (Some("a&b"), vec![("k", "v=ä"), ("k", ""), ("x", " ")]));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (query, expected) in [
            ("domian=x", "There is no parameter 'domian'; there are domain, entry, limit, cursor."),
            ("domain=x&domain=y", "twice"),
            ("limit=0", "from 1 to 1000"),
            ("limit=1001", "from 1 to 1000"),
            ("cursor=-1", "cursor is not"),
            ("entry=x", "entry is 'x'; write it as key=value."),
            ("entry==x", "write it as key=value."),
        ] {
            let error = parse(query).and_then(|query| query.part().and_then(|_| query.entries().map(drop)));
            let error = error.expect_err(query);
            assert!(error.detail().contains(expected), "{query}: {}", error.detail());
        }
        let many = "entry=a%3Db&".repeat(1_001);
        assert!(parse(&many).expect_err("too many").detail().contains("1000"));
    }

    #[test]
    fn a_list_comes_in_parts() {
        let part = |from, limit| ListPart { from, limit }.of(0..5);
        assert_eq!(part(0, 2), (vec![0, 1], json!("2")));
        assert_eq!(part(2, 3), (vec![2, 3, 4], json!(null)));
        assert_eq!(part(9, 3), (vec![], json!(null)));
        assert_eq!(part(usize::MAX, 1), (vec![], json!(null)));
    }
}
