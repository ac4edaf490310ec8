//! The settings of a weir in the test's process, on free ports, and its pages.

use std::{collections::BTreeMap, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use weir::settings::{Flags, Settings};

/// Listens on free ports of this machine only, and stops without a wait for load balancers.
const VARIABLES: [(&str, &str); 8] = [
    ("GRPC_HOST", "127.0.0.1"),
    ("HOST", "127.0.0.1"),
    ("DEBUG_HOST", "127.0.0.1"),
    ("GRPC_PORT", "0"),
    ("PORT", "0"),
    ("DEBUG_PORT", "0"),
    ("WEIR_STOP_DELAY", "0"),
    ("WEIR_STOP_TIMEOUT", "5s"),
];

pub fn settings(flags: &Flags, variables: &[(&str, &str)]) -> Settings {
    let environment: BTreeMap<String, String> = VARIABLES
        .iter()
        .chain(variables)
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Settings::resolve(flags, &environment).expect("the test's settings are valid")
}

/// Returns the response of a page, with its status and headers.
pub async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it takes it");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    response
}
