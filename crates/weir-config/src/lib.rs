//! Reads rule files: every key of envoyproxy/ratelimit's YAML, and weir's own.
//!
//! | file | contents |
//! | --- | --- |
//! | `files` | the files to read and their names, also in a ConfigMap |
//! | `load`, `encoding` | reads all files of a directory to [`limit::Domain`](weir_limit::Domain)s, or all errors |
//! | `yaml`, `scalar` | a document as a tree with positions; only `yaml` uses the YAML crate |
//! | `keys`, `fields` | the keys of each level, and typed access to their values |
//! | `documents`, `defaults` | rules that come as messages, and settings for those that their messages cannot express |
//! | `mapper`, `observer` | the names of metrics, `PROMETHEUS_MAPPER_YAML`, and how it shows durations: no rules |
//! | `compile`, `networks`, `rate_limit`, `tier`, `split`, `metadata`, `duration` | compile the tree to rules, level by level |
//! | `tables/` | values and limits that are listed in files |
//! | `in_force`, `calendar`, `schedule`, `zone` | the rules as they are in force at an instant, and time zones |
//! | `checks/` | checks of whole rules: repeated, hidden, ineffective or redundant ones, and those that instances cannot share |
//! | `explained` | why a descriptor matches a rule, or none |
//! | `describe` | a compiled rule in words and as JSON |
//! | `error` | errors and warnings with their places |

mod calendar;
mod checks;
mod compile;
mod defaults;
mod describe;
mod documents;
mod duration;
mod encoding;
pub mod error;
pub mod explained;
mod fields;
pub mod files;
#[cfg(any(debug_assertions, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod in_flight;
mod in_force;
mod keys;
pub mod load;
mod mapper;
mod metadata;
mod networks;
mod observer;
mod rate_limit;
mod scalar;
mod schedule;
mod share;
mod split;
mod tables;
pub mod thread;
mod tier;
mod yaml;
mod zone;

pub use checks::{calendars::warn_unkept, unshared::check_shared};
pub use defaults::RuleDefaults;
pub use describe::RuleDescription;
pub use documents::{Document, DocumentContent};
pub use duration::{RIGHT as PERIOD_RIGHT, parse as parse_period};
pub use error::{ConfigErrors, Finding};
pub use in_force::put_in_force;
pub use load::{Loaded, Options, load, load_documents, load_file, load_input, parse, texts};
pub use mapper::read_mapper;
pub use split::{divide_by_names, names_of_instances};
pub use tables::TableOptions;
pub use thread::{free_tables, on_rules_thread};
pub use zone::{TimezoneSource, time, timezone_source, use_timezones_of, words};
