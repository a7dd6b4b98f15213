# A server of the test of paths: paths.rb PORT. What a handler answers names it.
require_relative "rails"

class ReachedController < ActionController::API
  %w[login signin pay report].each do |name|
    define_method(name) do
      response.set_header "X-Reached", name
      render plain: name
    end
  end
end

serve(ARGV[0]) do
  post "/login", to: "reached#login"
  post "/Sign-In/", to: "reached#signin"
  post "/api/pay/:id", to: "reached#pay"
  get "/report", to: "reached#report"
end
