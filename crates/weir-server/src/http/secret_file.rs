//! Files of secrets, which other users of the machine must not read.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The rights of a file that everybody on the machine has.
const OF_OTHERS: u32 = 0o007;

const MAX_FILE: u64 = 64 << 10;

/// Why a file of secrets is not used. The messages have no part of a secret.
#[derive(Debug, thiserror::Error)]
#[error("{setting}, {}: {problem}", path.display())]
pub struct SecretFileError {
    setting: &'static str,
    path: PathBuf,
    problem: String,
    source: Option<io::Error>,
}

/// Reads the file that `setting` names. Blocks on file access.
pub(super) fn read<T>(
    setting: &'static str,
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, SecretFileError> {
    let wrong = |problem| SecretFileError { setting, path: path.to_owned(), problem, source: None };
    let unreadable = |source| SecretFileError { source: Some(source), ..wrong("cannot read it".to_owned()) };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OF_OTHERS != 0 {
        return Err(wrong(format!(
            "everybody on this machine may use it (mode {mode:03o}); take their rights away with chmod o-rwx"
        )));
    }
    if metadata.len() > MAX_FILE {
        return Err(wrong(format!("it has more than {MAX_FILE} bytes")));
    }
    parse(&fs::read_to_string(path).map_err(unreadable)?).map_err(wrong)
}
