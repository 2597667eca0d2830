//! Mapping between requests and HTTP paths, for server and client.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

/// Characters that stay unescaped: people read a pool's paths in logs.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

/// A request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Status,
    Keys,
    WritePath,
    Branches,
    Handles,
    IndexRows,
    Jobs,
    Rules,
    Catalogue,
    Tiers,
    Upgrade,
    Explain { path: Vec<u8> },
    ExplainCreate { path: Vec<u8>, size: u64 },
    Copy,
    SlowCalls,
    Profile,
    LogLines,
    Metrics,
    StatusPage,
}

impl Route {
    /// Parses a request's path and query.
    pub(crate) fn parse(path: &str, query: Option<&str>) -> Option<Self> {
        let of = |name: &str| {
            query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let bytes = |text: &str| percent_decode(text.as_bytes()).collect::<Vec<u8>>();
        Some(match path {
            "/v1/status" => Self::Status,
            "/v1/settings" => Self::Keys,
            "/v1/write-path" => Self::WritePath,
            "/v1/branches" => Self::Branches,
            "/v1/handles" => Self::Handles,
            "/v1/index-rows" => Self::IndexRows,
            "/v1/jobs" => Self::Jobs,
            "/v1/rules" => Self::Rules,
            "/v1/catalogue" => Self::Catalogue,
            "/v1/tiers" => Self::Tiers,
            "/v1/upgrade" => Self::Upgrade,
            "/v1/explain" => Self::Explain { path: bytes(of("path")?) },
            "/v1/explain-create" => {
                let size = of("size").map_or(Some(0), |text| text.parse().ok())?;
                Self::ExplainCreate { path: bytes(of("path")?), size }
            }
            "/v1/copy" => Self::Copy,
            "/v1/slow-calls" => Self::SlowCalls,
            "/v1/log-lines" => Self::LogLines,
            "/v1/profile" => Self::Profile,
            "/metrics" => Self::Metrics,
            "/" => Self::StatusPage,
            _ => return None,
        })
    }

    /// Formats the path and query of a request.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Status => "/v1/status".to_owned(),
            Self::Keys => "/v1/settings".to_owned(),
            Self::WritePath => "/v1/write-path".to_owned(),
            Self::Branches => "/v1/branches".to_owned(),
            Self::Handles => "/v1/handles".to_owned(),
            Self::IndexRows => "/v1/index-rows".to_owned(),
            Self::Jobs => "/v1/jobs".to_owned(),
            Self::Rules => "/v1/rules".to_owned(),
            Self::Catalogue => "/v1/catalogue".to_owned(),
            Self::Tiers => "/v1/tiers".to_owned(),
            Self::Upgrade => "/v1/upgrade".to_owned(),
            Self::Explain { path } => format!("/v1/explain?path={}", percent_encode(path, ESCAPED)),
            Self::ExplainCreate { path, size } => {
                format!("/v1/explain-create?path={}&size={size}", percent_encode(path, ESCAPED))
            }
            Self::Copy => "/v1/copy".to_owned(),
            Self::SlowCalls => "/v1/slow-calls".to_owned(),
            Self::Profile => "/v1/profile".to_owned(),
            Self::LogLines => "/v1/log-lines".to_owned(),
            Self::Metrics => "/metrics".to_owned(),
            Self::StatusPage => "/".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_back() {
        let path = b"a b/%&=\xff\n".to_vec();
        for route in [
            Route::Status,
            Route::Keys,
            Route::WritePath,
            Route::Branches,
            Route::Handles,
            Route::IndexRows,
            Route::Jobs,
            Route::Rules,
            Route::Catalogue,
            Route::Tiers,
            Route::Upgrade,
            Route::Copy,
            Route::SlowCalls,
            Route::Profile,
            Route::LogLines,
            Route::Metrics,
            Route::StatusPage,
            Route::Explain { path: path.clone() },
            Route::ExplainCreate { path, size: 7 },
        ] {
            let address = route.address();
            let (path, query) = address.split_once('?').map_or((&*address, None), |(p, q)| (p, Some(q)));
            assert_eq!(Route::parse(path, query), Some(route));
        }
    }

    #[test]
    fn strangers_are_refused() {
        assert_eq!(Route::parse("/v2/status", None), None);
        assert_eq!(Route::parse("/v1/explain", None), None);
        assert_eq!(Route::parse("/v1/explain-create", Some("path=/a&size=x")), None);
    }
}
