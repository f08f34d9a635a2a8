//! `#[derive(Layout)]`: a number that stands for how a type lies in memory, made from names, places and sizes of its
//! fields when the program is compiled. Whoever changes a type changes its number, and need not remember to.
//!
//! The trait, and what it is for, is `base::ledger::Layout`.

use proc_macro::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Fields, Index, Member, parse_macro_input, parse_quote};

/// Implements `base::ledger::Layout`. Every field's type has to have it as well.
#[proc_macro_derive(Layout)]
pub fn derive_layout(input: TokenStream) -> TokenStream {
    let mut input = parse_macro_input!(input as DeriveInput);
    let mut types = Vec::new();
    let steps: Vec<_> = match &input.data {
        Data::Struct(data) => members(&data.fields)
            .map(|(member, field)| {
                types.push(field.ty.clone());
                let (name, ty) = (named(&member), &field.ty);
                quote!(.field::<#ty>(#name, ::core::mem::offset_of!(Self, #member)))
            })
            .collect(),
        // Where the fields of a variant lie cannot be asked for; their order is that of their names here.
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let fields: Vec<_> = members(&variant.fields)
                    .map(|(member, field)| {
                        types.push(field.ty.clone());
                        let (name, ty) = (named(&member), &field.ty);
                        quote!(.field::<#ty>(#name, 0))
                    })
                    .collect();
                let name = variant.ident.to_string();
                quote!(.name(#name) #(#fields)*)
            })
            .collect(),
        Data::Union(_) => {
            let error = syn::Error::new_spanned(&input.ident, "a union has no one layout");
            return error.into_compile_error().into();
        }
    };
    if !input.generics.params.is_empty() {
        let bounds = input.generics.make_where_clause();
        bounds.predicates.extend(
            types.iter().map(|ty| -> syn::WherePredicate { parse_quote!(#ty: ::base::ledger::Layout) }),
        );
    }
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let (ident, name) = (&input.ident, input.ident.to_string());
    quote! {
        impl #generics ::base::ledger::Layout for #ident #arguments #bounds {
            const LAYOUT: ::base::ledger::LayoutHash =
                ::base::ledger::LayoutHash::of::<Self>(#name) #(#steps)*;
        }
    }
    .into()
}

/// The fields, with what they are called: by number where they have no names.
fn members(fields: &Fields) -> impl Iterator<Item = (Member, &syn::Field)> {
    fields.iter().enumerate().map(|(place, field)| {
        let by_number = || Member::Unnamed(Index::from(place));
        (field.ident.clone().map_or_else(by_number, Member::Named), field)
    })
}

fn named(member: &Member) -> String {
    match member {
        Member::Named(ident) => ident.to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}
