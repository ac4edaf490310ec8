use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

use super::*;
use crate::settings::{Environment, Flags, Settings};

const SECRET: &str = "s3cret";

/// Variables that have others read.
const SETTINGS: [&[(&str, &str)]; 7] = [
    &[("RUNTIME_ROOT", "/data")],
    &[("REDIS_URL", "redis:1"), ("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "redis:2")],
    &[("REDIS_URL", "main,redis:1"), ("REDIS_TYPE", "SENTINEL")],
    &[("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", "memcached:1")],
    &[("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", "/data"), ("WEIR_REDIS_PORT", "true")],
    &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")],
    &[
        ("TRACING_ENABLED", "true"),
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("USE_DOG_STATSD", "true"),
        ("USE_DOG_STATSD_MOGRIFIERS", "A"),
        ("DOG_STATSD_MOGRIFIER_A_PATTERN", "a"),
        ("DOG_STATSD_MOGRIFIER_A_NAME", "b"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/cert"),
        ("GRPC_SERVER_TLS_KEY", "/key"),
    ],
];

struct Recording(BTreeMap<String, String>, RefCell<BTreeSet<String>>);

impl Environment for Recording {
    fn get(&self, name: &str) -> Option<String> {
        self.1.borrow_mut().insert(name.to_owned());
        self.0.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

fn table(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn variables_that_are_read() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for settings in SETTINGS {
        let environment = Recording(table(settings), RefCell::default());
        let resolved = Settings::resolve(&Flags::default(), &environment);
        assert!(resolved.is_ok(), "{settings:?}: {resolved:?}");
        all.append(&mut environment.1.borrow_mut());
    }
    all
}

#[test]
fn no_message_has_a_value_that_may_be_a_secret() {
    let read = variables_that_are_read();
    let unknown = ["WEIR_REDIS_AUTH", "WEIR_REDIS_URL", "WEIR_PASSWORD", "WEIR_STOP_DELY"];
    let names = read
        .iter()
        .map(String::as_str)
        .chain(unknown)
        .filter(|name| find(name).is_none_or(|setting| !setting.is_shown));
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 50, "{names:?}");
    let values = [
        SECRET,
        "s3cret, s3cret",
        "u:s3cret@h:1",
        "host:1:s3cret",
        "redis://:s3cret",
        "http://u:s3cret@h:1",
        "a=b,s3cret:c",
        "a:b,s3cret=c",
        "-----BEGIN s3cret\nx",
    ];
    for name in names {
        for settings in SETTINGS {
            for value in values {
                let mut environment = table(settings);
                environment.insert(name.to_owned(), value.to_owned());
                let messages = match Settings::resolve(&Flags::default(), &environment) {
                    Ok(settings) => settings.warnings.join("\n"),
                    Err(errors) => format!("{errors}\n{errors:?}"),
                };
                assert!(!messages.contains(SECRET), "{name}={value}: {messages}");
            }
        }
    }
}

#[test]
fn every_setting_is_read() {
    let read = variables_that_are_read();
    for (name, setting) in BY_NAME.iter() {
        let is_read = match name.strip_suffix('*') {
            Some(prefix) => read.iter().any(|name| name.starts_with(prefix)),
            None => read.contains(name),
        };
        assert!(is_read, "{name} of {} is not read", setting.names);
    }
}

#[test]
fn names_with_parts_stand_for_several() {
    let names = |names| shown(names, "").expanded().collect::<Vec<_>>();
    assert_eq!(names("A"), ["A"]);
    assert_eq!(names("A_[B_|C_]D"), ["A_D", "A_B_D", "A_C_D"]);
    assert!(find("DOG_STATSD_MOGRIFIER_HITS_NAME").is_some_and(|setting| !setting.is_shown));
    assert!(find("REDIS_PERSECOND_URL").is_some() && find("REDIS_[PERSECOND_]URL").is_none());
}

#[test]
fn the_help_has_no_markdown() {
    let help = help();
    assert!(help.contains("WEIR_JSON (on): who may use /json, /v1/acquire and /v1/release: on,"), "{help}");
    assert!(!help.contains("](") && !help.contains('`'), "{help}");
}

/// The table of weir's own variables in the documentation; `make settings` writes it.
#[test]
fn the_documentation_has_the_table_of_weirs_variables() {
    const HEAD: &str = "| variable | default | meaning |\n| --- | --- | --- |\n";
    let own = all().filter(|setting| setting.names.starts_with("WEIR_"));
    let row =
        |setting: &Setting| format!("| `{}` | {} | {} |\n", setting.names, setting.default, setting.meaning);
    let table = HEAD.to_owned() + &own.map(row).collect::<String>();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (_, rest) = page.split_once("\n## Settings of weir\n").expect("its section");
    let start = page.len() - rest.len() + rest.find(HEAD).expect("its table");
    let end = page[start..].find("\n\n").map_or(page.len(), |end| start + end + 1);
    if env::var_os("WEIR_WRITE_SETTINGS").is_some() {
        fs::write(path, [&page[..start], &table, &page[end..]].concat()).expect("it can be written");
    } else {
        assert!(page[start..end] == table, "run `make settings`; {} is old", path.display());
    }
}
