//! Where the counts are kept, and the settings that all shared stores have.

use super::reader::SettingReader;
use weir_store::name::KeySettings;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Memory,
    Disk,
    Redis,
    Memcached,
}

pub(super) struct SharedKeys {
    pub(super) keys: KeySettings,
    pub(super) health_needs_connection: bool,
}

// === impl Backend ===

impl Backend {
    /// Without `BACKEND_TYPE`, a variable that names servers or a directory decides.
    pub(super) fn read(read: &mut SettingReader<'_>) -> Self {
        if let Some(given) = read.given("BACKEND_TYPE") {
            return Self::named(&given.value).unwrap_or_else(|| {
                read.reject(given, "memory, disk, redis or memcache");
                Self::Memory
            });
        }
        if read.is_given("REDIS_URL") {
            Self::Redis
        } else if read.is_given("MEMCACHE_HOST_PORT") || read.is_given("MEMCACHE_SRV") {
            Self::Memcached
        } else if read.is_given("WEIR_DATA_DIR") {
            Self::Disk
        } else {
            Self::Memory
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "memory" => Some(Self::Memory),
            "disk" => Some(Self::Disk),
            "redis" => Some(Self::Redis),
            "memcache" => Some(Self::Memcached),
            _ => None,
        }
    }

    pub(super) fn is_shared(self) -> bool {
        !matches!(self, Self::Memory | Self::Disk)
    }

    /// The section of the settings that only it has.
    pub(super) const fn section(self) -> Option<&'static str> {
        match self {
            Self::Memory => None,
            Self::Disk => Some("Disk"),
            Self::Redis => Some("Redis"),
            Self::Memcached => Some("Memcached"),
        }
    }

    pub(super) const fn place(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "memory and on disk",
            Self::Redis => "Redis",
            Self::Memcached => "Memcached",
        }
    }
}

// === impl SharedKeys ===

impl SharedKeys {
    /// Also reads them if the counts are not shared, so that typing errors are reported.
    pub(super) fn read(read: &mut SettingReader<'_>) -> Self {
        let jitter: i64 = read.number("EXPIRATION_JITTER_MAX_SECONDS", "a number of seconds");
        Self {
            keys: KeySettings {
                prefix: read.text("CACHE_KEY_PREFIX").into(),
                unambiguous: read.bool("WEIR_UNAMBIGUOUS_KEYS"),
                // envoyproxy/ratelimit takes a negative number as 0
                jitter_seconds: u64::try_from(jitter).unwrap_or(0),
            },
            health_needs_connection: read.bool("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
        }
    }
}
