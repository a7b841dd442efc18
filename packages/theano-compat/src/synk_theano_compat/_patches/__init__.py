"""What is changed around the execution of Theano's modules; `apply` has the table."""
