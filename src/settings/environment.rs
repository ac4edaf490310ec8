//! The environment, behind a trait: tests then need not change the process's own, which all threads share.

use std::{collections::BTreeMap, env};

/// Variables by name.
pub trait Environment {
    /// The value of the variable, if it is set.
    fn get(&self, name: &str) -> Option<String>;
}

/// The variables of this process. What is no UTF-8 is read with U+FFFD in the place of the bytes that are not.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }
}

/// The variables of a table, for tests and tools.
impl Environment for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        Self::get(self, name).cloned()
    }
}
