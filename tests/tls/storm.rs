//! Many handshakes, and connections that never complete theirs, beside decisions.

use std::{
    io::Write as _,
    net::TcpStream as StdTcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{
    authority::{Authority, Leaf},
    mounted::Mounted,
    service::{Weir, client},
};

/// The start of a `ClientHello` that announces 512 bytes.
const HALF_HELLO: [u8; 8] = [0x16, 3, 1, 2, 0, 1, 0, 1];

/// The connections that never complete their handshake.
const SILENT: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_continue_during_a_storm_of_handshakes() {
    let authority = Authority::new("authority");
    let pair = authority.sign_leaf(Leaf { rsa: true, ..Leaf::new(&["localhost"]) });
    let weir = Arc::new(Weir::start(&Mounted::new(&pair, None), &[("WEIR_WORKERS", "1")]).await);
    let config = client(&authority, None);
    let mut connection = weir.connect(Arc::clone(&config)).await.expect("a connection");

    let silent: Vec<StdTcpStream> = (0..SILENT)
        .map(|i| {
            let mut stream = StdTcpStream::connect(weir.address()).expect("a connection");
            if i % 2 == 0 {
                stream.write_all(&HALF_HELLO).expect("they are sent");
            }
            stream
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let storm: Vec<_> = (0..8)
        .map(|_| {
            let (stop, config, address) = (Arc::clone(&stop), Arc::clone(&config), weir.address());
            tokio::spawn(async move {
                let mut completed = 0;
                while !stop.load(Ordering::Relaxed) {
                    let stream = TcpStream::connect(address).await.expect("a connection");
                    let name = ServerName::try_from("localhost").expect("a name");
                    let connected = TlsConnector::from(Arc::clone(&config)).connect(name, stream).await;
                    completed += u32::from(connected.is_ok());
                }
                completed
            })
        })
        .collect();
    let before = weir.metric("weir_tls_handshakes_total").await;
    for _ in 0..1_000 {
        connection.decide().await.expect("a decision");
    }
    weir.until_metric("weir_tls_handshakes_total", before + 100.0).await;
    weir.connect(Arc::clone(&config)).await.expect("a connection").decide().await.expect("a decision");
    stop.store(true, Ordering::Relaxed);
    let mut completed = 0;
    for task in storm {
        completed += task.await.expect("no panic");
    }
    assert!(completed >= 100, "{completed} handshakes");
    drop(silent);
}
