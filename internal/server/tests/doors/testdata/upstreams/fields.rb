# A server of the test of spellings: fields.rb PORT. What it takes for the credential of ada it answers with ok.
require "json"
require "openssl"
require_relative "rails"

KEY = "k-ada"

class FieldsController < ActionController::Base
  include ActionController::HttpAuthentication::Basic::ControllerMethods
  include ActionController::HttpAuthentication::Token::ControllerMethods

  def basic = judge(http_basic || split_basic)
  def jwt = judge([token, second_word, substring].any? { |t| signed?(t) })
  def bearer = judge([token, second_word, substring].include?(KEY))
  def authorization = bearer
  def header = judge(request.headers["X-Api-Key"] == KEY)
  def query = judge(params[:key].to_s == KEY || Array(params[:key]).include?(KEY))
  def cookie = judge(cookies[:sid] == KEY)
  def signed_cookie = judge(signed?(cookies[:sess]))
  def signed_header = judge(signed?(request.headers["X-Token"]))
  def signed_query = judge(signed?(params[:token]))

  private

  def judge(ok) = ok ? render(plain: "ok") : render(plain: "no", status: 403)
  def authorization_field = request.authorization.to_s
  def http_basic = authenticate_with_http_basic { |user, password| [user, password] == %w[ada s3cret] }
  # Ruby's decoder passes over what is not base64.
  def split_basic = authorization_field.match?(/\Abasic/i) && authorization_field.sub(/\Abasic\s*/i, "").unpack1("m") == "ada:s3cret"
  def token = authenticate_with_http_token { |t, _| t }
  # As in many a tutorial.
  def second_word = authorization_field.split[1]
  def substring = authorization_field.match?(/\Abearer/i) ? authorization_field[7..].to_s.strip : nil

  # As the gem jwt does it.
  def signed?(token)
    parts = token.to_s.split(".")
    return false if parts.length != 3

    decode = ->(text) { (text + "=" * (-text.length % 4)).tr("-_", "+/").unpack1("m0") }
    mac = OpenSSL::HMAC.digest("SHA256", ENV["JWT_SECRET"], parts[0] + "." + parts[1])
    JSON.parse(decode.(parts[0]))["alg"] == "HS256" && mac == decode.(parts[2]) && JSON.parse(decode.(parts[1]))["sub"] == "ada"
  rescue ArgumentError, JSON::ParserError
    false
  end
end

serve(ARGV[0]) do
  %w[basic jwt bearer authorization header query cookie].each { |kind| get "/#{kind}", to: "fields##{kind}" }
  { "session" => "cookie", "signed-header" => "header", "signed-query" => "query" }.each { |kind, from| get "/#{kind}", to: "fields#signed_#{from}" }
end
