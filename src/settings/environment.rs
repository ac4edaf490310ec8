//! The environment behind a trait, so that tests need not change the variables of the process, which all threads share.

use std::{collections::BTreeMap, env};

pub trait Environment {
    fn get(&self, name: &str) -> Option<String>;

    fn names(&self) -> Vec<String>;

    /// Returns the names of those that are credentials of systemd; none by default.
    fn credentials(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The variables of this process. Bytes that are not UTF-8 are read as U+FFFD.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn names(&self) -> Vec<String> {
        env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

/// The variables of a table, for tests and tools.
impl Environment for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        Self::get(self, name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
}
