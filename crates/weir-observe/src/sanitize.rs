//! Sanitizes the names of stats, which contain text from rules and values from callers.

use super::text::is_active;

/// Replaces what receivers would misread with `_`. As in envoyproxy/ratelimit: `:` and `|`, which end a name in statsd,
/// and the dots of IPv4 addresses. Also [active](is_active) characters: a caller's line break must not start a stat.
pub fn sanitize(name: &str) -> String {
    let mut clean = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        let address = ipv4(rest.as_bytes());
        if address > 0 {
            clean.push_str(&rest[..address].replace('.', "_"));
            rest = &rest[address..];
            continue;
        }
        clean.push(if matches!(next, ':' | '|') || is_active(next) { '_' } else { next });
        rest = &rest[next.len_utf8()..];
    }
    clean
}

/// The length of the IPv4 address at the start, or 0. As in the reference, groups may be above 255.
fn ipv4(text: &[u8]) -> usize {
    let mut at = 0;
    for group in 0..4 {
        if group > 0 {
            if text.get(at) != Some(&b'.') {
                return 0;
            }
            at += 1;
        }
        let digits = text[at..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return 0;
        }
        at += digits;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_and_addresses_are_replaced() {
        for (name, clean) in [
            ("plain.name_x", "plain.name_x"),
            ("a:b|c", "a_b_c"),
            ("ip_10.0.0.1.total", "ip_10_0_0_1.total"),
            ("1234.1.1.1", "1234_1_1_1"),
            ("1.2.3.4567", "1_2_3_4567"),
            ("1.2.3.4.5.6.7.8.9", "1_2_3_4.5_6_7_8.9"),
            ("v1.2.3", "v1.2.3"),
            ("10.0.0.1:80", "10_0_0_1_80"),
            ("ü:ü", "ü_ü"),
        ] {
            assert_eq!(sanitize(name), clean);
        }
    }

    #[test]
    fn a_value_cannot_start_a_new_line() {
        assert_eq!(sanitize("a\nb:1|c\r\0\u{202e}d\u{200b}"), "a_b_1_c___d_");
    }
}
