//! Reads `shadow`: a limit that is counted beside the one that is enforced.

use super::{error::FileReport, fields::Fields, keys::Level, rate_limit, tier::Kind};
use crate::limit::Limit;

/// Reads the `shadow` of `fields`, if it is there. The algorithm is `inherited` unless it names one.
pub(super) fn read(fields: &Fields<'_>, inherited: Option<Kind>, report: &mut FileReport) -> Option<Limit> {
    let field = fields.get("shadow")?;
    let fields = Fields::new(field.value, Level::Shadow, "'shadow'", report)?;
    rate_limit::limit(&fields, field.key_at, inherited, report).0
}

/// Reads the `shadow` of `fields` beside their limit `enforced`, which is none if it is invalid, and whose algorithm it has unless it names
/// one. Reports what is valid alone, but not together.
pub(super) fn beside(
    fields: &Fields<'_>,
    enforced: Option<&Limit>,
    is_shared: bool,
    report: &mut FileReport,
) -> Option<Limit> {
    let field = fields.get("shadow")?;
    let Some(enforced) = enforced else { return read(fields, None, report) };
    // `unlimited` reports the keys that have no place beside it
    let first = enforced.tiers().first()?;
    if is_shared {
        report.error(
            field.key_at,
            "a limit that is shared has no 'shadow', because the shares depend on who asks; remove one of both",
        );
        return None;
    }
    let shadow = read(fields, Some(Kind::of(first)), report)?;
    if shadow == *enforced {
        report.warn(field.key_at, "this 'shadow' is the limit itself, so it would reject the same requests");
    }
    Some(shadow)
}
