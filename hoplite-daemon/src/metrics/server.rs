use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::{Method, Response, StatusCode};
use prometheus::TEXT_FORMAT;
use tokio::net::TcpListener;

use super::Metrics;
use crate::http::{self, Scheme};

const TEXT: &str = "text/plain; charset=utf-8";

pub(crate) async fn serve(listener: TcpListener, metrics: Metrics) {
    let refused = metrics.refused_connections("metrics");
    http::serve(listener, Scheme::Http, Some(refused), move |request| {
        let metrics = metrics.clone();
        async move { answer(request.method(), request.uri().path(), &metrics).await }
    })
    .await;
}

async fn answer(method: &Method, path: &str, metrics: &Metrics) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal =
            page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refusal
            .headers_mut()
            .insert(ALLOW, "GET, HEAD".parse().expect("a list of methods is a value"));
        return refusal;
    }
    match path {
        "/metrics" => page(StatusCode::OK, TEXT_FORMAT, metrics.text().await),
        "/healthz" => page(StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => match metrics.readiness().await {
            Ok(()) => page(StatusCode::OK, TEXT, "ready\n".to_owned()),
            Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        _ => page(
            StatusCode::NOT_FOUND,
            TEXT,
            "there are /metrics, /healthz and /readyz\n".to_owned(),
        ),
    }
}

fn page(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, content_type.parse().expect("a content type is a value"));
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::http::MAX_CONNECTIONS;

    const TIME_LIMIT: Duration = Duration::from_secs(300);

    async fn started() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Metrics::new("hoplite-test", "1", address)));
        address
    }

    async fn answer_to(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.write_all(request).await;
        let _ = timeout(TIME_LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn each_path_has_its_status_and_content() {
        let address = started().await;
        for (request, status, content) in [
            ("GET /metrics", "200", "hoplite_build_info"),
            ("GET /metrics?name=x", "200", "hoplite_build_info"),
            ("GET /healthz", "200", "\r\n\r\nok\n"),
            ("GET /readyz", "200", "\r\n\r\nready\n"),
            ("GET /", "404", "there are /metrics"),
            ("GET /../etc/passwd", "404", "there are /metrics"),
            ("POST /metrics", "405", "allow: GET, HEAD"),
            ("DELETE /metrics", "405", "only GET"),
        ] {
            let answer = answer_to(
                address,
                format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes(),
            )
            .await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
            assert!(answer.contains(content), "{request}: {answer}");
        }
        let head = answer_to(address, b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[tokio::test]
    async fn a_foreign_host_name_that_resolves_to_this_address_is_refused() {
        let address = started().await;
        for host in ["evil.example", "evil.example:9740", "localhost.evil.example", ""] {
            for path in ["/metrics", "/healthz", "/readyz"] {
                let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
                let answer = answer_to(address, request.as_bytes()).await;
                assert!(
                    answer.starts_with("HTTP/1.1 421") && !answer.contains("hoplite_"),
                    "{host}: {answer}"
                );
            }
        }
        for host in [address.to_string(), "localhost".to_owned(), "[::1]:9740".to_owned()] {
            let answer = answer_to(
                address,
                format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes(),
            )
            .await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
        }
    }

    #[tokio::test]
    async fn an_invalid_request_is_refused_and_the_next_request_is_answered() {
        let address = started().await;
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000));
        let garbage = vec![0xff_u8; 4096];
        for request in
            [garbage.as_slice(), b"\0\0\0\0", long.as_bytes(), many.as_bytes(), b"GET\r\n\r\n"]
        {
            let answer = answer_to(address, request).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
        let answer = answer_to(address, b"GET /healthz HTTP/1.1\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    #[tokio::test]
    async fn silent_connections_do_not_block_others() {
        let address = started().await;
        let mut silent = Vec::new();
        for number in 0..MAX_CONNECTIONS {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nSlow: ").await.unwrap();
            }
            silent.push(stream);
        }
        let answer = answer_to(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
