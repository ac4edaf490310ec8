//! Reads the mogrifiers of `DogStatsD`: a variable that lists their names, and three variables for each.

use weir_export::statsd::{Mogrifier, MogrifierError};

use super::{parse, reader::SettingReader};

const LIST: &str = "USE_DOG_STATSD_MOGRIFIERS";

const PREFIX: &str = "DOG_STATSD_MOGRIFIER_";

/// The names that envoyproxy/ratelimit's README shows begin with it, and its code does not read them.
const WRONG_LIST: &str = "DOG_STATSD_MOGRIFIERS";

/// Every name is compared with each of them.
const MAX: usize = 100;

/// Keeps the order of their list. Warns about variables without effect. `dog` says that stats go to `DogStatsD`.
pub(super) fn mogrifiers(
    read: &mut SettingReader<'_>,
    dog: bool,
    warnings: &mut Vec<String>,
) -> Vec<Mogrifier> {
    let list = read.given(LIST);
    if list.is_none() && read.unlisted(WRONG_LIST).is_some() {
        warnings.push(format!("{WRONG_LIST} is set, but has no effect: the variable is {LIST}"));
    }
    let names: Vec<String> =
        list.iter().flat_map(|given| given.value.split(',')).map(variable_part).collect();
    warn_about_others(read, &names, warnings);
    let Some(list) = list else { return Vec::new() };
    if names.iter().any(String::is_empty) || names.len() > MAX {
        read.reject(list, format!("up to {MAX} names with commas between them, such as DOMAIN,HITS"));
        return Vec::new();
    }
    if !dog {
        warnings.push(format!("{LIST} is set, but has no effect: USE_DOG_STATSD is not true"));
    }
    names.iter().filter_map(|name| mogrifier(read, name)).collect()
}

fn variable_part(name: &str) -> String {
    name.trim().to_ascii_uppercase()
}

fn mogrifier(read: &mut SettingReader<'_>, name: &str) -> Option<Mogrifier> {
    let variable = |part: &str| format!("{PREFIX}{name}_{part}");
    let mut required = |part: &str, expected: &str| {
        let given = read.given(&variable(part));
        if given.is_none() {
            let wrong = format!("{WRONG_LIST}_{name}_{part}");
            let hint = read.unlisted(&wrong).map(|_| format!("; {wrong} is set, but its name is wrong"));
            let expected = format!("{expected}, because {LIST} names {name}{}", hint.unwrap_or_default());
            read.missing(&variable(part), expected);
        }
        given
    };
    let pattern = required("PATTERN", "a regular expression");
    let new_name = required("NAME", "the name of the stats that the pattern finds");
    let tags_variable = variable("TAGS");
    let tags = read.optional(&tags_variable, parse::pairs).unwrap_or_default();
    let (pattern, new_name) = (pattern?, new_name?);
    let error = match Mogrifier::new(&pattern.value, &new_name.value, tags) {
        Ok(mogrifier) => return Some(mogrifier),
        Err(error) => error,
    };
    let given = match &error {
        MogrifierError::Pattern(_) => pattern,
        MogrifierError::Name => new_name,
        MogrifierError::Tags => read.given(&tags_variable)?,
    };
    read.reject(given, error.to_string());
    None
}

fn warn_about_others(read: &SettingReader<'_>, names: &[String], warnings: &mut Vec<String>) {
    for variable in read.names() {
        let Some(rest) = variable.strip_prefix(PREFIX) else { continue };
        let name = ["_PATTERN", "_NAME", "_TAGS"].iter().find_map(|part| rest.strip_suffix(part));
        if let Some(name) = name.filter(|name| !names.iter().any(|listed| listed == name)) {
            warnings.push(format!("{variable} is set, but has no effect: {LIST} does not name {name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::settings::{Flags, SettingErrors, Settings};

    const VALID: [(&str, &str); 4] = [
        ("USE_DOG_STATSD", "true"),
        ("USE_DOG_STATSD_MOGRIFIERS", "HITS"),
        ("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "^a\\.(.*)$"),
        ("DOG_STATSD_MOGRIFIER_HITS_NAME", "a"),
    ];

    /// Resolves the valid variables with `others`; an empty value unsets one.
    fn resolve(others: &[(&str, &str)]) -> Result<Settings, SettingErrors> {
        let variables: BTreeMap<String, String> = VALID
            .iter()
            .chain(others)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Settings::resolve(&Flags::default(), &variables)
    }

    #[test]
    fn each_listed_mogrifier_is_read_in_order() {
        let others = [
            ("USE_DOG_STATSD_MOGRIFIERS", "HITS, lower"),
            ("DOG_STATSD_MOGRIFIER_LOWER_PATTERN", "b"),
            ("DOG_STATSD_MOGRIFIER_LOWER_NAME", "c"),
            ("DOG_STATSD_MOGRIFIER_LOWER_TAGS", "k:$0,l:x:y"),
        ];
        let settings = resolve(&others).expect("valid settings");
        let list = format!("{:?}", settings.statsd.expect("it is on").mogrifiers);
        assert!(
            list.find("HITS").is_none() && list.find("^a").expect("the first") < list.find("\"b\"").unwrap()
        );
        assert!(list.contains("x:y") && settings.warnings.is_empty(), "{list} {:?}", settings.warnings);
    }

    #[test]
    fn an_invalid_mogrifier_stops_the_start() {
        for (variable, value, expected) in [
            (
                "DOG_STATSD_MOGRIFIER_HITS_PATTERN",
                "",
                "a regular expression, because USE_DOG_STATSD_MOGRIFIERS names HITS",
            ),
            ("DOG_STATSD_MOGRIFIER_HITS_NAME", "", "the name of the stats that the pattern finds, because"),
            ("DOG_STATSD_MOGRIFIER_HITS_PATTERN", "a(", "must be a regular expression: unclosed group"),
            ("DOG_STATSD_MOGRIFIER_HITS_NAME", "a:b", "must be a name without ':'"),
            ("DOG_STATSD_MOGRIFIER_HITS_TAGS", "k", "must be pairs such as"),
            ("DOG_STATSD_MOGRIFIER_HITS_TAGS", ":5", "must be pairs such as"),
            ("DOG_STATSD_MOGRIFIER_HITS_TAGS", "k:", "must be tags without"),
            ("USE_DOG_STATSD_MOGRIFIERS", "HITS,", "must be up to 100 names"),
        ] {
            let error = resolve(&[(variable, value)]).expect_err("it is invalid").to_string();
            assert!(error.starts_with(variable) && error.contains(expected), "{variable}={value}: {error}");
        }
    }

    #[test]
    fn the_prefix_of_the_readme_is_pointed_out() {
        let others =
            [("DOG_STATSD_MOGRIFIER_HITS_PATTERN", ""), ("DOG_STATSD_MOGRIFIERS_HITS_PATTERN", "^a$")];
        let error = resolve(&others).expect_err("it is invalid").to_string();
        assert!(
            error.ends_with("DOG_STATSD_MOGRIFIERS_HITS_PATTERN is set, but its name is wrong"),
            "{error}"
        );
    }

    #[test]
    fn variables_without_effect_are_warned_about() {
        for (others, expected) in [
            (
                vec![("USE_DOG_STATSD", "")],
                "USE_DOG_STATSD_MOGRIFIERS is set, but has no effect: USE_DOG_STATSD is not true",
            ),
            (
                vec![("DOG_STATSD_MOGRIFIER_OTHER_NAME", "b")],
                "DOG_STATSD_MOGRIFIER_OTHER_NAME is set, but has no effect: USE_DOG_STATSD_MOGRIFIERS does not name OTHER",
            ),
            (
                vec![("USE_DOG_STATSD_MOGRIFIERS", ""), ("DOG_STATSD_MOGRIFIERS", "HITS")],
                "DOG_STATSD_MOGRIFIERS is set, but has no effect: the variable is USE_DOG_STATSD_MOGRIFIERS",
            ),
        ] {
            let warnings = resolve(&others).expect("valid settings").warnings;
            assert!(warnings.iter().any(|warning| warning == expected), "{warnings:?}");
        }
    }
}
