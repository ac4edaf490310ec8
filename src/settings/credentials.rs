//! Variables from files that systemd gives the service: its credentials
//! (<https://systemd.io/CREDENTIALS/>). Other processes cannot read them, unlike an environment.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use super::environment::{Environment, ProcessEnvironment};

const DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// Begins the names of credentials that are variables.
const PREFIX: &str = "weir_";

/// The bytes that all credentials of a service may have, as systemd bounds them.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("cannot read the credential {path}")]
    Unreadable { path: String, source: io::Error },
    /// The file is larger than 1 MiB, which systemd itself would not allow, or not UTF-8.
    #[error("invalid credential {0}; a credential is UTF-8 text of at most 1 MiB")]
    Invalid(String),
    #[error("{variable} is set, and is also a credential ({PREFIX}{variable}); remove one of them")]
    Twice { variable: String },
}

/// The variables of this process, and its credentials: the file `weir_NAME` of `$CREDENTIALS_DIRECTORY` is `NAME`.
#[derive(Clone, Default)]
pub struct ServiceEnvironment {
    credentials: BTreeMap<String, String>,
}

// === impl ServiceEnvironment ===

impl ServiceEnvironment {
    /// Reads the credentials, if systemd gives any.
    pub fn read() -> Result<Self, CredentialError> {
        let credentials = match env::var_os(DIRECTORY) {
            Some(dir) => read(Path::new(&dir))?,
            None => BTreeMap::new(),
        };
        let set = |name: &String| ProcessEnvironment.get(name).is_some_and(|value| !value.is_empty());
        if let Some(variable) = credentials.keys().find(|name| set(name)).cloned() {
            return Err(CredentialError::Twice { variable });
        }
        Ok(Self { credentials })
    }
}

impl Environment for ServiceEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        self.credentials.get(name).cloned().or_else(|| ProcessEnvironment.get(name))
    }

    fn names(&self) -> Vec<String> {
        let mut names = ProcessEnvironment.names();
        names.extend(self.credentials());
        names
    }

    fn credentials(&self) -> Vec<String> {
        self.credentials.keys().cloned().collect()
    }
}

/// Other files may be there, such as keys for TLS.
fn read(dir: &Path) -> Result<BTreeMap<String, String>, CredentialError> {
    let unreadable = |path: &Path| {
        let path = path.display().to_string();
        move |source| CredentialError::Unreadable { path, source }
    };
    let mut credentials = BTreeMap::new();
    for file in fs::read_dir(dir).map_err(unreadable(dir))? {
        let path = file.map_err(unreadable(dir))?.path();
        let Some(variable) = path.file_name().and_then(variable).map(str::to_owned) else {
            continue;
        };
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(unreadable(&path))?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable(&path))?;
        let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= MAX_BYTES);
        let Some(text) = text else {
            return Err(CredentialError::Invalid(path.display().to_string()));
        };
        // editors end a file with a line feed
        let value = text.strip_suffix('\n').map_or(text.as_str(), |text| text.trim_end_matches('\r'));
        credentials.insert(variable, value.to_owned());
    }
    Ok(credentials)
}

fn variable(file: &OsStr) -> Option<&str> {
    let name = file.to_str()?.strip_prefix(PREFIX)?;
    let valid = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    (!name.is_empty() && name.chars().all(valid)).then_some(name)
}
