//! Reads rule files: every key of envoyproxy/ratelimit's YAML, and weir's own.
//!
//! | file | contents |
//! | --- | --- |
//! | `source` | the trait through which the service loads rules, and the directory behind it |
//! | `files`, `mount`, `watch` | the files to read and their names, also in a ConfigMap; the changes to them |
//! | `load`, `encoding` | reads all files of a directory to [`limit::Domain`](crate::limit::Domain)s, or all errors |
//! | `yaml`, `scalar` | a document as a tree with positions; only `yaml` uses the YAML crate |
//! | `keys`, `fields` | the keys of each level, and typed access to their values |
//! | `documents`, `defaults` | rules that come as messages, and settings for those that their messages cannot express |
//! | `mapper`, `observer` | the names of metrics, `PROMETHEUS_MAPPER_YAML`, and how it shows durations: no rules |
//! | `compile`, `rate_limit`, `tier`, `split`, `metadata`, `duration` | compile the tree to rules, level by level |
//! | `checks/` | checks of whole rules: repeated, hidden, misplaced, ineffective or redundant ones, and those that instances cannot share |
//! | `describe` | a compiled rule in words and as JSON |
//! | `error`, `go_format` | errors and warnings with their places, worded as envoyproxy/ratelimit's |

mod checks;
mod compile;
#[cfg(feature = "server")]
mod defaults;
#[cfg(feature = "server")]
mod describe;
mod documents;
mod duration;
mod encoding;
mod error;
mod fields;
mod files;
#[cfg(all(feature = "server", any(test, fuzzing)))]
pub(crate) mod fuzz;
mod go_format;
mod keys;
mod load;
#[cfg(feature = "server")]
mod mapper;
mod metadata;
mod mount;
#[cfg(feature = "server")]
mod observer;
mod rate_limit;
mod scalar;
mod share;
#[cfg(feature = "server")]
mod source;
mod split;
#[cfg(feature = "server")]
mod thread;
mod tier;
#[cfg(feature = "server")]
mod watch;
mod yaml;

pub use checks::unshared::check_shared;
#[cfg(feature = "server")]
pub use defaults::RuleDefaults;
#[cfg(feature = "server")]
pub(crate) use describe::RuleDescription;
pub use documents::{Document, DocumentContent};
#[cfg(feature = "server")]
pub(crate) use duration::{RIGHT as PERIOD_RIGHT, parse as parse_period};
#[cfg(feature = "server")]
pub(crate) use error::DisplayOrigin;
pub use error::{ConfigError, ConfigErrors, ConfigWarning};
pub use load::{Loaded, Options, load, load_documents, load_file, load_input, parse};
#[cfg(feature = "server")]
pub use mapper::read_mapper;
#[cfg(feature = "server")]
pub use source::{DirectorySource, RuleSource};
pub use split::{divide_by_names, names_of_instances};
#[cfg(feature = "server")]
pub(crate) use thread::on_rules_thread;
#[cfg(feature = "server")]
pub use watch::Watch;
