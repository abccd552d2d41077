//! An option of a client, read and written by the [table](crate::codec::options_table).

use super::body::OptionBody;
use super::{InfoRequest, MetaRequest, Reinstatement, with_length};
use crate::codec::FieldReader;
use crate::codec::constants::{OPTION_MAGIC, option};
use crate::codec::options_table::for_each_option;
use block::Result;

/// Makes [`OptionRequest`] from the table.
macro_rules! option_requests {
    (@parse $name:ident, $body:ident, $form:ident) => {
        FieldReader::new(stringify!($name), $body).end().map(|()| Self::$form)
    };
    (@parse $name:ident, $body:ident, $form:ident, $holds:ty) => {
        OptionBody::parse(stringify!($name), $body).map(Self::$form)
    };
    (@bound $holds:ty, $pattern:pat) => {
        $pattern
    };
    ($($number:literal, $name:ident, $form:ident$(($holds:ty))?, $answers:path;)*) => {
        /// An option with what it carries, under its name in the specification.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs)] // the names are the specification's; it says what they mean
        pub enum OptionRequest<'a> {
            $($form$(($holds))?,)*
            /// An option that is not known here.
            Unknown(u32),
        }

        impl<'a> OptionRequest<'a> {
            /// Reads an option's body, which has exactly the announced length.
            ///
            /// # Errors
            /// [`Invalid`](block::ErrorKind::Invalid) when the lengths in it do not add up, or a text is too long or not
            /// UTF-8.
            pub fn parse(code: u32, body: &'a [u8]) -> Result<Self> {
                if code == option::ABORT {
                    return Ok(Self::Abort); // whatever it carries
                }
                match code {
                    $(option::$name => option_requests!(@parse $name, body, $form $(, $holds)?),)*
                    _ => Ok(Self::Unknown(code)),
                }
            }

            /// The option's number.
            pub fn code(&self) -> u32 {
                match self {
                    $(Self::$form$((option_requests!(@bound $holds, _)))? => option::$name,)*
                    Self::Unknown(code) => *code,
                }
            }

            /// Writes the option with its header.
            pub fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
                out.extend_from_slice(&self.code().to_be_bytes());
                with_length(out, |out| match self {
                    $($(Self::$form(body) => <$holds as OptionBody<'_>>::put(body, out),)?)*
                    _ => {}
                });
            }
        }
    };
}

for_each_option!(option_requests);
