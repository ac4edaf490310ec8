//! Texts of a mapper file in which `$1`, `${1}` or `${name}` stand for a group of the match.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    /// 0 is the whole match.
    Group(usize),
}

// === impl Template ===

impl Template {
    /// Parses `text` as Go's `Regexp.Expand` does: `$1_a` is the group `1_a`, and `$$` a dollar sign. `group` returns
    /// the number of a group's name or number. References to missing groups are empty, and are returned.
    pub fn parse(text: &str, group: impl Fn(&str) -> Option<usize>) -> (Self, Vec<String>) {
        let (mut template, mut missing) = (Self::default(), Vec::new());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            template.push(before);
            let Some((name, after)) = reference(after) else {
                template.push("$");
                rest = after.strip_prefix('$').unwrap_or(after);
                continue;
            };
            match group(name) {
                Some(number) => template.parts.push(TemplatePart::Group(number)),
                None => missing.push(name.to_owned()),
            }
            rest = after;
        }
        template.push(rest);
        (template, missing)
    }

    fn push(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(TemplatePart::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.parts.push(TemplatePart::Text(text.to_owned())),
        }
    }

    /// Returns the texts between the references, with whether each is at the beginning.
    pub fn texts(&self) -> impl Iterator<Item = (bool, &str)> {
        self.parts.iter().enumerate().filter_map(|(i, part)| match part {
            TemplatePart::Text(text) => Some((i == 0, text.as_str())),
            TemplatePart::Group(_) => None,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn fill<'a>(&self, group: impl Fn(usize) -> &'a str) -> String {
        self.parts.iter().fold(String::new(), |filled, part| match part {
            TemplatePart::Text(text) => filled + text,
            TemplatePart::Group(number) => filled + group(*number),
        })
    }
}

/// Splits the name of a group, in braces or not, from the text after it.
fn reference(text: &str) -> Option<(&str, &str)> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let (name, after) = match text.strip_prefix('{') {
        Some(inner) => inner.split_once('}')?,
        None => text.split_at(text.find(|c| !is_name(c)).unwrap_or(text.len())),
    };
    (!name.is_empty() && name.chars().all(is_name)).then_some((name, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_gos_syntax() {
        for (text, expected, missing) in [
            ("plain", "plain", vec![]),
            ("$1", "[1]", vec![]),
            ("${1}_server", "[1]_server", vec![]),
            ("$1_server", "", vec!["1_server"]),
            ("a$2$1b", "a[2][1b]", vec![]),
            ("${name}.$0", "[3].[0]", vec![]),
            ("$9-${no}", "-", vec!["9", "no"]),
            ("$$1 $ ${ ${} $-", "$1 $ ${ ${} $-", vec![]),
        ] {
            let group = |name: &str| match name {
                "name" => Some(3),
                "1b" => Some(4),
                number => number.parse().ok().filter(|number| *number < 3),
            };
            let (template, not_found) = Template::parse(text, group);
            let groups = ["[0]", "[1]", "[2]", "[3]", "[1b]"];
            assert_eq!(
                (template.fill(|i| groups[i]).as_str(), not_found),
                (expected, missing.iter().map(|name| (*name).to_owned()).collect()),
                "{text}"
            );
        }
    }
}
