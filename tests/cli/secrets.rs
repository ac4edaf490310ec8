//! Passwords of settings are in no output: not in errors of settings, and not in the log of a start.

use std::net::TcpListener;

use crate::{
    NO_DELAY, RULES,
    child::{Serving, run, stderr, stdout},
    get, path, rules,
};

const SECRET: &str = "s3cret";

#[test]
fn errors_of_settings_have_no_secrets() {
    let dir = rules(RULES);
    let (serve, check) = (["serve", "--config", path(&dir)], ["check", path(&dir)]);
    let explain = ["explain", "--config", path(&dir), "--domain", "shop", "hello=world"];
    let (xds, traces) = (("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("TRACING_ENABLED", "true"));
    for (name, value, needs) in [
        ("WEIR_STOP_DELY", "s3cret", NO_DELAY),
        ("WEIR_REDIS_URL", "redis://:s3cret@redis:6379", NO_DELAY),
        ("REDIS_URL", "redis://:s3cret", NO_DELAY),
        ("REDIS_URL", "host:1:s3cret", NO_DELAY),
        ("MEMCACHE_HOST_PORT", "user:s3cret@h:11211", NO_DELAY),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization: s3cret", traces),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:s3cret@collector:4318", traces),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "<authorization=s3cret>", xds),
    ] {
        for format in ["text", "json"] {
            let variables = [(name, value), needs, ("LOG_FORMAT", format)];
            let output = run(&serve, &variables);
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{name}: {error}");
            assert!(
                error.contains(&format!("{name} must be ")) && !error.contains(SECRET),
                "{name}: {error}"
            );
            for command in [&check[..], &explain] {
                // an error of another setting of theirs
                let output = run(command, &[&variables[..], &[("MERGE_DOMAIN_CONFIG", "maybe")]].concat());
                let printed = stdout(&output) + &stderr(&output);
                assert!(
                    printed.contains("MERGE_DOMAIN_CONFIG is \"maybe\"") && !printed.contains(SECRET),
                    "{printed}"
                );
            }
        }
    }
}

/// A private key in the place of its path.
#[test]
fn an_error_about_a_file_has_no_content_of_it() {
    let dir = rules(RULES);
    let key = "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----\n";
    let tls = [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", "-----BEGIN s3cret")];
    let output =
        run(&["serve", "--config", path(&dir)], &[&tls[..], &[("GRPC_SERVER_TLS_KEY", key)]].concat());
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("cannot read GRPC_SERVER_TLS_CERT, ") && !error.contains(SECRET), "{error}");
}

#[test]
fn the_log_of_a_start_has_no_secrets() {
    let dir = rules(RULES);
    // bound, and not listening for long: connections are refused
    let closed = TcpListener::bind("127.0.0.1:0").expect("a socket").local_addr().expect("its address");
    let (redis, collector) = (format!("redis://user:s3cret@{closed}/0"), format!("http://{closed}"));
    for format in ["text", "json"] {
        let weir = Serving::start(
            path(&dir),
            &[
                NO_DELAY,
                ("LOG_FORMAT", format),
                ("LOG_LEVEL", "trace"),
                ("REDIS_URL", &redis),
                ("REDIS_SENTINEL_AUTH", SECRET),
                ("TRACING_ENABLED", "true"),
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector),
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret"),
                ("OTEL_BSP_SCHEDULE_DELAY", "1"),
                ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "authorization:s3cret"),
                ("WEIR_PASSWORD", SECRET),
            ],
        );
        get(weir.address("http"), "/metrics");
        let body = "hello=world";
        run(&["call", "--address", weir.address("grpc"), "--domain", "shop", body], &[]);
        weir.signal("TERM");
        let (_, output) = weir.ended();
        assert!(output.contains("WEIR_PASSWORD is set, but has no effect"), "{output}");
        assert!(output.contains(&closed.to_string()), "it tells of the failure to connect: {output}");
        assert!(!output.contains(SECRET), "{output}");
    }
}
