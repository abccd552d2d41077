
//! What every policy promises, and what each of them decides.
