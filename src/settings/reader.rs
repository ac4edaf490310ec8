//! Reads single settings, and collects their errors.

use std::{
    cell::RefCell, collections::BTreeSet, error::Error, fmt, net::IpAddr, path::PathBuf, time::Duration,
};

use super::{environment::Environment, flags::Flags, parse, table};

pub(super) const MAX_SHOWN: usize = 200;

/// All invalid settings, at least one: the flag or variable, its value if it may be shown, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingErrors(pub Vec<String>);

/// A flag takes precedence over its variable.
pub(super) struct SettingReader<'a> {
    flags: &'a Flags,
    environment: &'a dyn Environment,
    errors: Vec<String>,
    read: RefCell<BTreeSet<String>>,
}

pub(super) struct Given {
    pub(super) name: String,
    pub(super) value: String,
}

// === impl SettingReader ===

impl<'a> SettingReader<'a> {
    pub(super) fn new(flags: &'a Flags, environment: &'a dyn Environment) -> Self {
        Self { flags, environment, errors: Vec::new(), read: RefCell::default() }
    }

    /// The variable is in the table of settings.
    pub(super) fn given(&self, variable: &str) -> Option<Given> {
        let setting = table::find(variable);
        debug_assert!(setting.is_some(), "{variable} is not in the table of settings");
        self.read.borrow_mut().insert(variable.to_owned());
        if let Some(value) = self.flags.others.0.get(variable)
            && let Some((flag, _)) = setting.and_then(|setting| setting.flag)
        {
            return Some(Given { name: format!("--{flag}"), value: value.clone() });
        }
        Some(Given { name: variable.into(), value: self.unlisted(variable)? })
    }

    pub(super) fn is_given(&self, variable: &str) -> bool {
        self.given(variable).is_some()
    }

    /// The value of a variable that need not be in the table. An empty one counts as unset, since deployments write it so.
    pub(super) fn unlisted(&self, variable: &str) -> Option<String> {
        self.environment.get(variable).filter(|value| !value.is_empty())
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        self.environment.names().into_iter().collect()
    }

    pub(super) fn credentials(&self) -> Vec<String> {
        self.environment.credentials()
    }

    pub(super) fn was_read(&self, variable: &str) -> bool {
        self.read.borrow().contains(variable)
    }

    /// `expected` describes a valid value. It must not contain this one, which may be secret.
    pub(super) fn reject(&mut self, Given { name, value }: Given, expected: impl fmt::Display) {
        // flags are in the list of processes anyway
        let is_shown = name.starts_with("--") || table::find(&name).is_some_and(|setting| setting.is_shown);
        let error = if is_shown {
            let value: String = value.chars().take(MAX_SHOWN).collect();
            format!("{name} is {value:?}, but must be {expected}")
        } else {
            format!("{name} must be {expected}")
        };
        // a variable for several signals is read for each
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    pub(super) fn missing(&mut self, variable: &str, expected: impl fmt::Display) {
        self.errors.push(format!("{variable} is not set, but must be {expected}"));
    }

    /// None if the variable is not set, or invalid.
    pub(super) fn optional<T, E: fmt::Display>(
        &mut self,
        variable: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let given = self.given(variable)?;
        match parse(&given.value) {
            Ok(value) => Some(value),
            Err(expected) => {
                self.reject(given, expected);
                None
            }
        }
    }

    /// With the default of the table.
    pub(super) fn parsed<T, E: fmt::Display>(
        &mut self,
        variable: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> T {
        self.optional(variable, &parse).unwrap_or_else(|| match parse(default(variable)) {
            Ok(value) => value,
            Err(expected) => panic!("the default of {variable} must be {expected}"),
        })
    }

    pub(super) fn text(&mut self, variable: &str) -> String {
        self.given(variable).map_or_else(|| default(variable).into(), |given| given.value)
    }

    pub(super) fn path(&mut self, variable: &str) -> Option<PathBuf> {
        self.given(variable).map(|given| given.value.into())
    }

    pub(super) fn bool(&mut self, variable: &str) -> bool {
        self.parsed(variable, parse::bool)
    }

    pub(super) fn duration(&mut self, variable: &str) -> Duration {
        self.parsed(variable, parse::duration)
    }

    /// envoyproxy/ratelimit starts with a duration of 0 or less, so it stands for the default here, with a warning.
    pub(super) fn duration_above_0(&mut self, variable: &str, warnings: &mut Vec<String>) -> Duration {
        let time = self.parsed(variable, parse::signed_duration).filter(|time| !time.is_zero());
        time.unwrap_or_else(|| {
            let default = default(variable);
            warnings.push(format!("{variable} is not above 0, so the default of {default} applies"));
            parse::duration(default).unwrap_or_default()
        })
    }

    pub(super) fn number<T: TryFrom<i128>>(&mut self, variable: &str, expected: &str) -> T {
        self.parsed(variable, |text| parse::integer(text).ok_or(expected))
    }

    pub(super) fn port(&mut self, variable: &str) -> u16 {
        self.number(variable, "a port from 0 to 65535, where 0 selects a free port")
    }

    pub(super) fn host(&mut self, variable: &str) -> IpAddr {
        self.parsed(variable, |text| {
            parse::host(text)
                .ok_or("an IP address to listen on, such as 0.0.0.0, 127.0.0.1 or ::1; or localhost")
        })
    }

    pub(super) fn choice<T: Copy>(&mut self, variable: &str, choices: &[(&str, T)]) -> T {
        self.parsed(variable, |text| parse::choice(text, choices))
    }

    /// Warnings about settings of a section, which have no effect for that reason.
    pub(super) fn without_effect(&self, section: &str, reason: &str) -> Vec<String> {
        let set = table::section(section).filter(|(variable, _)| self.is_on(variable));
        set.map(|(variable, _)| format!("{variable} is set, but has no effect: {reason}")).collect()
    }

    /// Whether the variable is set, and not to `false` or 0.
    pub(super) fn is_on(&self, variable: &str) -> bool {
        self.given(variable).is_some_and(|given| parse::bool(&given.value) != Ok(false))
    }

    pub(super) fn finish(self) -> Result<(), SettingErrors> {
        if self.errors.is_empty() { Ok(()) } else { Err(SettingErrors(self.errors)) }
    }
}

fn default(variable: &str) -> &'static str {
    table::find(variable).map_or("", |setting| setting.default)
}

// === impl SettingErrors ===

/// Prints one error per line; if there are several, after a line with their number.
impl fmt::Display for SettingErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [error] = &self.0[..] {
            return f.write_str(error);
        }
        write!(f, "{} invalid settings", self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl Error for SettingErrors {}
