//! Where the counts are kept. Each store that instances share has a module with its variables and a line in [`STORES`].

mod memcached;
mod redis;

use super::{
    parse,
    reader::SettingReader,
    table::{Setting, shown},
};
use weir_limit::SharedStore;
use weir_remotes::RemoteSettings;
use weir_store::name::KeySettings;

/// In the order of the help, and of the selection without `BACKEND_TYPE`.
pub(super) const STORES: [&StoreVariables; 2] = [&redis::STORE, &memcached::STORE];

#[rustfmt::skip]
pub(super) const BACKEND_TYPE: Setting =
    shown("BACKEND_TYPE", "")
        .means("`redis`, `memcache`, `disk`, or `memory`. Default: the first of these for which REDIS_URL, \
            MEMCACHE_HOST_PORT or MEMCACHE_SRV, or WEIR_DATA_DIR is set; else `memory`");

/// The variables of a store that instances share.
pub(super) struct StoreVariables {
    pub(super) store: SharedStore,
    /// Its name in `BACKEND_TYPE`.
    backend: &'static str,
    /// Each of these selects it if `BACKEND_TYPE` is not set.
    addresses: &'static [&'static str],
    /// The name of the spans of its calls, as in envoyproxy/ratelimit.
    span: &'static str,
    /// Its section of the help.
    pub(super) settings: &'static [Setting],
    /// Returns none if it is not selected, or invalid. Variables are parsed even then, so that typing errors are
    /// reported.
    read: fn(&mut SettingReader<'_>, bool, &KeySettings, &mut Vec<String>) -> Option<RemoteSettings>,
    /// Returns what a variable that does not exist probably stands for; none if that has its value already.
    pub(super) meant: fn(&str, &SettingReader<'_>, Option<&RemoteSettings>) -> Option<String>,
}

#[derive(Clone, Copy)]
pub(super) enum Backend {
    Memory,
    Disk,
    Shared(&'static StoreVariables),
}

// === impl Backend ===

impl Backend {
    /// Without `BACKEND_TYPE`, a variable that names servers or a directory decides.
    pub(super) fn read(read: &mut SettingReader<'_>) -> Self {
        if read.is_given("BACKEND_TYPE") {
            return read.optional("BACKEND_TYPE", Self::named).unwrap_or(Self::Memory);
        }
        let is_given = |shared: &&StoreVariables| shared.addresses.iter().any(|name| read.is_given(name));
        match STORES.into_iter().find(is_given) {
            Some(shared) => Self::Shared(shared),
            None if read.is_given("WEIR_DATA_DIR") => Self::Disk,
            None => Self::Memory,
        }
    }

    /// The error is all names.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        let shared = STORES.map(|shared| (shared.backend, Self::Shared(shared)));
        parse::choice(name, &[&[("memory", Self::Memory), ("disk", Self::Disk)][..], &shared].concat())
    }

    pub(super) fn store(self) -> Option<SharedStore> {
        if let Self::Shared(shared) = self { Some(shared.store) } else { None }
    }

    /// The section of the settings that only it has, and the place of the counts.
    pub(super) const fn section(self) -> (Option<&'static str>, &'static str) {
        match self {
            Self::Memory => (None, "memory"),
            Self::Disk => (Some("Disk"), "memory and on disk"),
            Self::Shared(shared) => (Some(shared.store.name), shared.store.name),
        }
    }

    /// What traces call it, and a wait for it.
    pub(super) const fn span(self) -> (&'static str, &'static str) {
        match self {
            // nothing waits
            Self::Memory => ("memory", "Memory Wait"),
            Self::Disk => ("disk", "Disk Wait"),
            Self::Shared(shared) => (shared.store.system, shared.span),
        }
    }

    pub(super) fn shared(
        self,
        read: &mut SettingReader<'_>,
        warnings: &mut Vec<String>,
    ) -> Option<RemoteSettings> {
        let keys = keys(read);
        let read = |shared: &StoreVariables| {
            (shared.read)(read, self.store() == Some(shared.store), &keys, warnings)
        };
        STORES.map(read).into_iter().flatten().next()
    }
}

fn keys(read: &mut SettingReader<'_>) -> KeySettings {
    let jitter: i64 = read.number("EXPIRATION_JITTER_MAX_SECONDS", "a number of seconds");
    KeySettings {
        prefix: read.text("CACHE_KEY_PREFIX").into(),
        unambiguous: read.bool("WEIR_UNAMBIGUOUS_KEYS"),
        // envoyproxy/ratelimit takes a negative number as 0
        jitter_seconds: u64::try_from(jitter).unwrap_or(0),
    }
}
