//! What calls of the control plane carry to show that the caller knows the token.

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::token::Token;

/// Adds what the token makes of itself to each call of a client. Without a token, nothing.
#[derive(Debug, Clone, Default)]
pub struct Bearer {
    authorization: Option<MetadataValue<Ascii>>,
}

impl Bearer {
    pub(crate) fn new(token: Option<&Token>) -> Self {
        let authorization = token.map(|token| {
            let mut value: MetadataValue<Ascii> =
                token.bearer().parse().expect("hexadecimal digits are ASCII");
            // Neither printed nor kept in the tables of HTTP/2.
            value.set_sensitive(true);
            value
        });
        Self { authorization }
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_carry_what_the_token_recognises_and_do_not_print_it() {
        let token = Token::new(b"sixteen bytes ok").unwrap();
        let request = Bearer::new(Some(&token)).call(Request::new(())).unwrap();
        let value = request.metadata().get("authorization").unwrap();
        assert!(token.is_bearer(value.as_bytes()));
        assert!(!format!("{request:?}").contains(&token.bearer()[7..]));
        assert!(Bearer::new(None).call(Request::new(())).unwrap().metadata().is_empty());
    }
}
