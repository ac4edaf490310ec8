//! The rules of a limiter: where they come from, and how they come into force.

#[cfg(feature = "dns")]
mod dns;

use std::{collections::HashSet, num::NonZeroU16, path::PathBuf, sync::Arc};

#[cfg(feature = "dns")]
pub(super) use self::dns::FollowedRules;
use crate::selected_store::AnyStore;
use weir_config::{self as config, ConfigErrors, divide_by_names, put_in_force};
use weir_limit::{Domain, KeyHasher, RuleSet};
use weir_limiter::Limiter;
use weir_store::clock::Clock;

pub(super) struct RuleFiles {
    pub(super) dir: Option<PathBuf>,
    /// Rules that are not in files.
    pub(super) domains: Vec<Domain>,
}

pub(super) struct Rules {
    limiter: Arc<Limiter<AnyStore>>,
    clock: Arc<dyn Clock>,
    /// Kept across loads, since counters are found by it.
    hasher: KeyHasher,
}

// === impl RuleFiles ===

impl RuleFiles {
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

/// Only one of several sources with the same domain could count.
fn reject_duplicates(domains: &[Domain]) -> Result<(), ConfigErrors> {
    let mut seen = HashSet::new();
    let again = domains.iter().filter(|domain| !seen.insert(&domain.name));
    let errors: Vec<_> = again
        .map(|domain| config::Finding {
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
    let errors = names.map(|(name, at)| config::Finding {
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
    pub(super) fn new(limiter: Arc<Limiter<AnyStore>>, clock: Arc<dyn Clock>) -> Self {
        Self { limiter, clock, hasher: KeyHasher::random() }
    }

    /// `number` returns the instances of a DNS name that limits are divided by.
    pub(super) fn load(&self, mut domains: Vec<Domain>, number: impl Fn(&str) -> NonZeroU16) {
        for domain in &mut domains {
            divide_by_names(&mut domain.nodes, &number);
        }
        put_in_force(&mut domains, self.clock.now());
        self.limiter.load(RuleSet::new(&domains, self.hasher));
    }
}
