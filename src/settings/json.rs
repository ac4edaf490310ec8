use weir_net::tls::ServerTls;
use weir_server::http::JsonAccess;

use super::{parse, reader::SettingReader};

/// Without `WEIR_JSON`, client certificates turn `/json` off: it would count for anybody what gRPC counts for few.
pub(super) fn json(
    read: &mut SettingReader<'_>,
    tls: Option<&ServerTls>,
    warnings: &mut Vec<String>,
) -> JsonAccess {
    const NAMES: [(&str, JsonAccess); 3] =
        [("on", JsonAccess::Everybody), ("off", JsonAccess::Nobody), ("loopback", JsonAccess::Loopback)];
    let given = read.optional("WEIR_JSON", |text| {
        // YAML turns `on` and `off` into booleans
        let name = parse::bool(text).map_or(text, |is_on| if is_on { "on" } else { "off" });
        parse::choice(name, &NAMES)
    });
    given.unwrap_or_else(|| {
        if tls.is_none_or(|tls| tls.client_ca.is_none()) {
            return JsonAccess::Everybody;
        }
        warnings.push(
            "/json is off, because GRPC_CLIENT_TLS_CACERT demands client certificates and /json asks for none; \
             WEIR_JSON=loopback or WEIR_JSON=on serves it, and WEIR_JSON=off ends this warning"
                .into(),
        );
        JsonAccess::Nobody
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::resolve::tests::resolve;

    const TLS: [(&str, &str); 3] =
        [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", "/cert"), ("GRPC_SERVER_TLS_KEY", "/key")];
    const CLIENTS: (&str, &str) = ("GRPC_CLIENT_TLS_CACERT", "/ca");

    #[test]
    fn json_is_off_with_client_certificates_unless_it_is_asked_for() {
        let mutual = [&TLS[..], &[CLIENTS]].concat();
        assert_eq!(resolve(&[]).expect("valid").json, JsonAccess::Everybody);
        assert_eq!(resolve(&TLS).expect("valid").json, JsonAccess::Everybody);
        let settings = resolve(&mutual).expect("valid");
        assert_eq!(settings.json, JsonAccess::Nobody);
        assert!(
            settings.warnings.iter().any(|warning| warning.contains("WEIR_JSON=on")),
            "{:?}",
            settings.warnings
        );
        for (value, expected) in [
            ("on", JsonAccess::Everybody),
            ("True", JsonAccess::Everybody),
            ("OFF", JsonAccess::Nobody),
            ("false", JsonAccess::Nobody),
            ("Loopback", JsonAccess::Loopback),
        ] {
            let settings = resolve(&[&mutual[..], &[("WEIR_JSON", value)]].concat()).expect("valid");
            assert_eq!((settings.json, settings.warnings.len()), (expected, 0), "{value}");
        }
        let error = resolve(&[("WEIR_JSON", "localhost")]).expect_err("it is invalid").to_string();
        assert_eq!(error, "WEIR_JSON is \"localhost\", but must be on, off or loopback");
    }
}
