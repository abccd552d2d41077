//! The table of the negotiation's options.

/// Calls a macro with the options, a line for each: its number, its name in the specification, its form in
/// [`OptionRequest`](crate::codec::option::OptionRequest) with what its body holds, and what answers it, in
/// `server/options`. What stands behind the macro's name comes before them.
macro_rules! for_each_option {
    ($call:ident $($arguments:tt)*) => {
        $call! {
            $($arguments)*
            1, EXPORT_NAME, ExportName(&'a str), export::export_name;
            2, ABORT, Abort, session::abort;
            3, LIST, List, export::list;
            5, STARTTLS, StartTls, session::start_tls;
            6, INFO, Info(InfoRequest<'a>), export::info;
            7, GO, Go(InfoRequest<'a>), export::go;
            8, STRUCTURED_REPLY, StructuredReply, style::structured_reply;
            9, LIST_META_CONTEXT, ListMetaContext(MetaRequest<'a>), meta_context::list;
            10, SET_META_CONTEXT, SetMetaContext(MetaRequest<'a>), meta_context::set;
            11, EXTENDED_HEADERS, ExtendedHeaders, style::extended_headers;
            // Our own: docs/nbd.md. A server that does not know it says so, which is no harm.
            0x534f_4a01, REINSTATE, Reinstate(Reinstatement), reinstate::reinstate;
            0x534f_4a02, INITIAL_CONTACT, InitialContact, initial_contact::initial_contact;
        }
    };
}

pub(crate) use for_each_option;
