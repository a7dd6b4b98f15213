# A server of the test of paths: paths.rb PORT. What a handler answers names it. It is Rails as it comes, behind Puma.
require "logger"
require "rails"
require "action_controller/railtie"
require "puma"
require "puma/server"

class ReachedController < ActionController::API
  %w[login signin pay report].each do |name|
    define_method(name) do
      response.set_header "X-Reached", name
      render plain: name
    end
  end
end

class Upstream < Rails::Application
  config.eager_load = true
  config.consider_all_requests_local = false
  config.secret_key_base = "none" * 16
  config.logger = Logger.new(nil)
  config.hosts.clear
  routes.append do
    post "/login", to: "reached#login"
    post "/Sign-In/", to: "reached#signin"
    post "/api/pay/:id", to: "reached#pay"
    get "/report", to: "reached#report"
  end
end

Upstream.initialize!
server = Puma::Server.new(Upstream)
server.add_tcp_listener "127.0.0.1", ARGV[0].to_i
server.run.join
