//! Host header of requests to a loopback address.
//!
//! A web page may have its own name resolve to 127.0.0.1 (DNS rebinding). A browser on this machine then asks that
//! address in the page's name, and lets the page read the answers. Such a request has that name in its Host header.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap};

/// Reason of the refusal.
pub(crate) const REFUSAL: &str =
    "refused: the Host header names another host; ask for localhost or the IP address\n";

/// True unless a Host header has another name than `localhost`.
pub(crate) fn is_local(headers: &HeaderMap) -> bool {
    headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_local_name))
}

/// Whether `host` is `localhost` or an IP address, with any port.
fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(hosts: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_static(host));
        }
        headers
    }

    #[test]
    fn addresses_and_localhost_are_local_and_other_names_are_not() {
        assert!(is_local(&headers(&[])), "a client without the header is no browser");
        for host in ["localhost", "LocalHost:9190", "127.0.0.1", "127.0.0.1:9190", "[::1]", "[::1]:9190"] {
            assert!(is_local(&headers(&[host])), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:9190", "localhost.evil.example", "127.0.0.1.evil.example"]
        {
            assert!(!is_local(&headers(&[host])), "{host}");
            assert!(!is_local(&headers(&["localhost", host])), "{host} is the second one");
        }
    }
}
