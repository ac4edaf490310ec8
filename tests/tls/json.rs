//! `/json` beside a gRPC port that demands client certificates.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{authority::Authority, local, mounted::Mounted, service::Weir};

/// Returns the status of a request at `/json`.
async fn status(weir: &Weir) -> String {
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k"}]}]}"#;
    let head = format!(
        "POST /json HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(weir.addresses.http).await.expect("it listens");
    stream.write_all((head + body).as_bytes()).await.expect("it takes it");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    response.split(' ').nth(1).expect("a status").to_owned()
}

#[tokio::test]
async fn json_is_closed_where_clients_need_certificates() {
    let authority = Authority::new("authority");
    let pair = authority.sign(&["localhost"]);
    let (mutual, one_sided) = (Mounted::new(&pair, Some(&authority.pem())), Mounted::new(&pair, None));
    for (mounted, variables, expected) in [
        (&one_sided, &[][..], "200"),
        (&mutual, &[], "404"),
        (&mutual, &[("WEIR_JSON", "on")], "200"),
        // as this test is
        (&mutual, &[("WEIR_JSON", "loopback")], "200"),
        (&one_sided, &[("WEIR_JSON", "off")], "404"),
    ] {
        let weir = Weir::start(mounted, variables).await;
        assert_eq!(status(&weir).await, expected, "{variables:?}");
        for page in ["/healthcheck", "/metrics"] {
            let response = local::get(weir.addresses.http, page).await;
            assert!(response.starts_with("HTTP/1.1 200 "), "{variables:?} {page}: {response}");
        }
        weir.stop().await;
    }
}
