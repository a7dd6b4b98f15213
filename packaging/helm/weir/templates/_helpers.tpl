{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "weir.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "weir.fullname" .)) .Values.tokensSecret -}}
{{- end -}}

{{- define "weir.rulesConfigMap" -}}
{{- default (printf "%s-rules" (include "weir.fullname" .)) .Values.rulesConfigMap -}}
{{- end -}}

{{/* Decision doors that are open, as name: port. */}}
{{- define "weir.ports" -}}
{{- range $door := list "http" "grpc" "resp" "spoe" "proxy" -}}
{{- with index $.Values.ports $door }}
{{ $door }}: {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether several pods may run. */}}
{{- define "weir.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) -}}yes{{- end -}}
{{- end -}}

{{/* Whether the rules lie in a database. */}}
{{- define "weir.ruleDatabase" -}}
{{- if .Values.rulesSecret.name -}}yes
{{- else if regexMatch "^postgres(ql)?://" (toString (default "" .Values.config.rules)) -}}yes
{{- end -}}
{{- end -}}

{{/* weir.yaml: what the chart decides goes before what config says. */}}
{{- define "weir.config" -}}
{{- $listen := dict "admin" (printf ":%d" (int .Values.ports.admin)) -}}
{{- range $door := list "http" "grpc" "resp" "spoe" "proxy" -}}
{{- $port := int (index $.Values.ports $door) -}}
{{- $_ := set $listen $door (ternary (printf ":%d" $port) "off" (gt $port 0)) -}}
{{- end -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "listen" $listen -}}
{{- if and .Values.rulesSecret.name $config.rules -}}
{{- fail "config.rules and rulesSecret name two places of rules; give one" -}}
{{- end -}}
{{- if include "weir.ruleDatabase" . -}}
{{- if .Values.rulesConfigMap -}}
{{- fail "rulesConfigMap: the rules lie in a database (rulesSecret or config.rules); give one of them" -}}
{{- end -}}
{{- $db := default dict $config.rules_db -}}
{{- if not (hasKey $db "cache") -}}
{{- $_ := set $db "cache" "/var/lib/weir/rules.cache" -}}
{{- end -}}
{{- $_ := set $config "rules_db" $db -}}
{{- else if $config.rules -}}
{{- fail "config.rules: may name a PostgreSQL, as postgres://…; files are those of rules or rulesConfigMap" -}}
{{- else -}}
{{- $_ := set $config "rules" "/rules" -}}
{{- end -}}
{{- $auth := default dict $config.auth -}}
{{- $_ := set $auth "tokens_file" "/etc/weir-tokens/tokens" -}}
{{- $_ := set $config "auth" $auth -}}
{{- if .Values.tlsSecret -}}
{{- $tls := default dict $config.tls -}}
{{- $_ := set $tls "cert" "/etc/weir-tls/tls.crt" -}}
{{- $_ := set $tls "key" "/etc/weir-tls/tls.key" -}}
{{- if not $tls.doors -}}
{{- $_ := set $tls "doors" (keys (include "weir.ports" . | fromYaml) | sortAlpha) -}}
{{- end -}}
{{- if has "admin" $tls.doors -}}
{{- fail "config.tls.doors: leave admin out: Kubernetes probes it over plain HTTP" -}}
{{- end -}}
{{- $_ := set $config "tls" $tls -}}
{{- end -}}
{{- $own := $config.store -}}
{{- if kindIs "map" $own -}}
{{- $own = $own.url -}}
{{- end -}}
{{- $store := default "memory" $own -}}
{{- if and .Values.storeSecret.name $own -}}
{{- fail "config.store and storeSecret name two stores; give one" -}}
{{- end -}}
{{- if and (include "weir.several" .) (eq $store "memory") (not .Values.storeSecret.name) -}}
{{- fail "several pods need a store that they share, a Redis, PostgreSQL or Cassandra: set storeSecret or config.store, or replicas: 1 without autoscaling. In its own memory each pod would admit the whole limit" -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
