//! The example works as it is, with the rules that weir serves by default.

use crate::support::{
    Stack,
    http::Ask,
    wait::{self, HOUR},
};

/// The example as it is, but for the ports.
fn start() -> Stack {
    Stack::from_files("config", "examples/envoy/envoy.yaml", |text, weir| {
        let replace = |text: &str, port: u16, by: u16| {
            let (port, by) = (format!("port_value: {port} "), format!("port_value: {by} "));
            assert_eq!(text.matches(&port).count(), 1, "{port}");
            text.replace(&port, &by)
        };
        let text = replace(&text, 8081, weir);
        let text = replace(&text, 9901, 0);
        let text = replace(&text, 10000, 0);
        // a busy machine is no failure of weir
        text.replace("timeout: 0.05s", "timeout: 30s")
    })
}
