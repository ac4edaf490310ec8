//! Reads single settings, and collects their errors.

use std::{cell::RefCell, collections::BTreeSet, error::Error, fmt, net::IpAddr, time::Duration};

use super::{environment::Environment, flags::Flags, harmless::is_harmless, parse};

pub(super) const MAX_SHOWN: usize = 200;

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// The flag or variable.
    pub name: String,
    /// Its value, as far as it may be shown.
    pub value: SettingValue,
    /// A description of a valid value.
    pub expected: String,
}

/// The value of an invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// There is none.
    Unset,
    /// It may hold a password, so no message has it.
    Hidden,
    /// The value of a variable that holds no secrets.
    Shown(String),
}

/// All invalid settings; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingErrors(pub Vec<SettingError>);

/// A flag takes precedence over its variable.
pub(super) struct SettingReader<'a> {
    flags: &'a Flags,
    environment: &'a dyn Environment,
    errors: Vec<SettingError>,
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

    /// An empty variable counts as unset, since deployments write it so.
    pub(super) fn given(&self, variable: &str) -> Option<Given> {
        self.read.borrow_mut().insert(variable.to_owned());
        if let Some((flag, value)) = self.flags.get(variable) {
            return Some(Given { name: flag.into(), value: value.into() });
        }
        let value = self.environment.get(variable).filter(|value| !value.is_empty())?;
        Some(Given { name: variable.into(), value })
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

    /// `expected` must not contain the value, which may be secret.
    pub(super) fn reject(&mut self, given: Given, expected: impl Into<String>) {
        let Given { name, value } = given;
        let shown = || SettingValue::Shown(value.chars().take(MAX_SHOWN).collect());
        let value = if is_harmless(&name) { shown() } else { SettingValue::Hidden };
        let error = SettingError { name, value, expected: expected.into() };
        // a variable for several signals is read for each
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    pub(super) fn missing(&mut self, variable: &str, expected: impl Into<String>) {
        let (name, value) = (variable.to_owned(), SettingValue::Unset);
        self.errors.push(SettingError { name, value, expected: expected.into() });
    }

    pub(super) fn parsed<T, E: Into<String>>(
        &mut self,
        variable: &str,
        default: T,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> T {
        let Some(given) = self.given(variable) else {
            return default;
        };
        match parse(&given.value) {
            Ok(value) => value,
            Err(expected) => {
                self.reject(given, expected);
                default
            }
        }
    }

    pub(super) fn text(&mut self, variable: &str, default: &str) -> String {
        self.given(variable).map_or_else(|| default.into(), |given| given.value)
    }

    pub(super) fn bool(&mut self, variable: &str) -> bool {
        self.parsed(variable, false, parse::bool)
    }

    pub(super) fn duration(&mut self, variable: &str, default: Duration) -> Duration {
        self.parsed(variable, default, parse::duration)
    }

    /// envoyproxy/ratelimit starts with a duration of 0 or less, so it stands for the default here, with a warning.
    pub(super) fn duration_above_0(
        &mut self,
        variable: &str,
        default: Duration,
        warnings: &mut Vec<String>,
    ) -> Duration {
        match self.parsed(variable, Some(default), parse::signed_duration) {
            Some(time) if !time.is_zero() => time,
            _ => {
                warnings.push(format!("{variable} is not above 0, so the default of {default:?} applies"));
                default
            }
        }
    }

    pub(super) fn number<T: TryFrom<i128>>(&mut self, variable: &str, default: T, expected: &str) -> T {
        self.parsed(variable, default, |text| parse::integer(text).ok_or(expected))
    }

    pub(super) fn port(&mut self, variable: &str, default: u16) -> u16 {
        self.number(variable, default, "a port from 0 to 65535, where 0 selects a free port")
    }

    pub(super) fn host(&mut self, variable: &str) -> IpAddr {
        self.parsed(variable, IpAddr::from([0, 0, 0, 0]), |text| {
            parse::host(text)
                .ok_or("an IP address to listen on, such as 0.0.0.0, 127.0.0.1 or ::1; or localhost")
        })
    }

    pub(super) fn choice<T: Copy>(&mut self, variable: &str, default: T, choices: &[(&str, T)]) -> T {
        self.parsed(variable, default, |text| {
            let choice = choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
            choice.map(|(_, value)| *value).ok_or_else(|| {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                names.join(" or ")
            })
        })
    }

    pub(super) fn finish(self) -> Result<(), SettingErrors> {
        if self.errors.is_empty() { Ok(()) } else { Err(SettingErrors(self.errors)) }
    }
}

// === impl SettingError ===

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, expected } = self;
        match value {
            SettingValue::Unset => write!(f, "{name} is not set, but must be {expected}"),
            SettingValue::Hidden => write!(f, "{name} must be {expected}"),
            SettingValue::Shown(value) => write!(f, "{name} is {value:?}, but must be {expected}"),
        }
    }
}

// === impl SettingErrors ===

/// Prints one error per line; if there are several, after a line with their number.
impl fmt::Display for SettingErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [error] = &self.0[..] {
            return error.fmt(f);
        }
        write!(f, "{} invalid settings", self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl Error for SettingErrors {}
