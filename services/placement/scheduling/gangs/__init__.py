"""Gangs: pods that are placed all or none. Pure: who belongs to one is `shared.book.gangs`' matter; here are where it
would fit (`domains`), the try on the book that is taken back where it fails (`placing`), and what people are told
(`words`)."""
