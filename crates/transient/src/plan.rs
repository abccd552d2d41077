//! What is lent, and what must still be so before the first write.
