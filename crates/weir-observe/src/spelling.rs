//! Suggestions for misspelled names.

/// The nearest name by edit distance, ignoring case, if at most a third of its letters differ.
pub fn nearest<'n>(written: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // longer ones are no misspelled names, and comparing takes time
    if written.len() > 32 {
        return None;
    }
    let written = written.to_ascii_lowercase();
    names
        .into_iter()
        .map(|name| (strsim::levenshtein(&written, &name.to_ascii_lowercase()), name))
        .filter(|(distance, name)| distance * 3 <= name.len())
        .min()
        .map(|(_, name)| name)
}
