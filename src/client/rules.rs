//! The rules of a limiter: where they come from, and how they come into force.

#[cfg(feature = "dns")]
mod followed;

use std::{collections::HashSet, num::NonZeroU16, path::PathBuf, sync::Arc};

#[cfg(feature = "dns")]
pub(super) use self::followed::FollowedRules;
use crate::{
    config::{self, ConfigErrors, divide_by_names},
    limit::{Domain, KeyHasher, RuleSet},
    limiter::Limiter,
    store::AnyStore,
};

/// Where the rules come from.
pub(super) struct RuleFiles {
    pub(super) dir: Option<PathBuf>,
    /// Those that are not files.
    pub(super) domains: Vec<Domain>,
}

/// The rules that a limiter decides by.
pub(super) struct Rules {
    limiter: Arc<Limiter<AnyStore>>,
    /// Kept across loads, since counters are found by it.
    hasher: KeyHasher,
}

// === impl RuleFiles ===

impl RuleFiles {
    /// Reads all rules.
    pub(super) fn read(&self) -> Result<Vec<Domain>, ConfigErrors> {
        let mut domains = self.domains.clone();
        if let Some(dir) = &self.dir {
            domains.extend(config::load(dir, &config::Options::default())?.domains);
        }
        reject_duplicates(&domains)?;
        #[cfg(not(feature = "dns"))]
        reject_names(&domains)?;
        Ok(domains)
    }
}

/// Returns an error for each domain of several sources: only one of them could count.
fn reject_duplicates(domains: &[Domain]) -> Result<(), ConfigErrors> {
    let mut seen = HashSet::new();
    let again = domains.iter().filter(|domain| !seen.insert(&domain.name));
    let errors: Vec<_> = again
        .map(|domain| config::ConfigError {
            at: domain.nodes.first().map(|node| node.origin.clone()).unwrap_or_default(),
            message: format!(
                "the domain '{}' has rules of another source, too: write them in one",
                domain.name
            ),
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors { errors, warnings: Vec::new() }) }
}

#[cfg(not(feature = "dns"))]
fn reject_names(domains: &[Domain]) -> Result<(), ConfigErrors> {
    let names = domains.iter().flat_map(|domain| config::names_of_instances(&domain.nodes));
    let errors = names.map(|(name, at)| config::ConfigError {
        at,
        message: format!(
            "'instances: dns://{name}' needs the crate's feature 'dns', by which names are looked up; enable it, or \
             write a number"
        ),
    });
    let errors: Vec<_> = errors.collect();
    if errors.is_empty() { Ok(()) } else { Err(ConfigErrors { errors, warnings: Vec::new() }) }
}

// === impl Rules ===

impl Rules {
    pub(super) fn new(limiter: Arc<Limiter<AnyStore>>) -> Self {
        Self { limiter, hasher: KeyHasher::random() }
    }

    /// Decides by `domains` from now on. `number` says how many instances the DNS names have that limits are divided
    /// by.
    pub(super) fn load(&self, mut domains: Vec<Domain>, number: impl Fn(&str) -> NonZeroU16) {
        for domain in &mut domains {
            divide_by_names(&mut domain.nodes, &number);
        }
        self.limiter.load(RuleSet::new(&domains, self.hasher));
    }
}
