//! Suggestions for misspelled names.

/// Returns the name with the smallest edit distance to `written`, ignoring case, if at most a third of its letters differ.
pub(crate) fn nearest<'n>(written: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // longer ones are no misspelled names, and comparing takes time
    if written.len() > 32 {
        return None;
    }
    names
        .into_iter()
        .map(|name| (distance(written, name), name))
        .filter(|(distance, name)| distance * 3 <= name.len())
        .min()
        .map(|(_, name)| name)
}

/// Returns the least number of characters to insert, delete or replace to turn `a` into `b` (Levenshtein distance).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!from.eq_ignore_ascii_case(to));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
